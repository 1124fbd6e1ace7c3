"""Masked language models of any architecture: some tokens are hidden, and guessed from all others.

    language/, text/ ─▶ batching (padding, masks) ─▶ model (scores of masked tokens) ─▶ recipe ─▶ training
                                                        └─▶ evaluation (the same masks for everyone)

Read: recipe (entry), model (its part of the run spec, presets, the last layers on masked places only), batching (from
pairs and rows to batches), evaluation (held-out figures, gaps that people look at).

Called by registry, and by recipes for one architecture.
"""
