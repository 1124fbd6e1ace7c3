"""Causal language models of any architecture: each token is guessed from those before it.

    language/, text/ ─▶ recipe (rows, batches) ─▶ model (loss) ─▶ training
                                                    └─▶ evaluation (held-out figures, continuations)

Read: recipe (entry), model (its part of the run spec, presets, cross-entropy in bounded memory), evaluation (nats,
perplexity, bits a byte, continuations of texts).

Called by registry.
"""
