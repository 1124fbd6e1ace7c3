"""Causal language models of any architecture: each token is guessed from those before it.

    language/, text/ ─▶ batching (rows) ─▶ token_losses ─▶ recipe ─▶ training
                                              └─▶ evaluation (held out), sampling (continuations)

Read: recipe (entry), settings (its part of the run spec), sizes (presets, and what transformers has), batching (from
rows of tokens to batches), token_losses (cross-entropy in bounded memory), evaluation (nats, perplexity, bits a byte),
sampling (continuations of texts).

Called by registry.
"""
