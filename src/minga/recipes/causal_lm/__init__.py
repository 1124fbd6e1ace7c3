"""Causal language models of any architecture: each token is guessed from those before it.

    language/, text/ ─▶ recipe (rows, batches) ─▶ training
                          └─▶ evaluation (losses, held-out figures, continuations)

Read: recipe (entry), settings (its part of the run spec, presets), evaluation (cross-entropy in bounded memory, nats,
perplexity, bits a byte, continuations of texts).

Called by registry.
"""
