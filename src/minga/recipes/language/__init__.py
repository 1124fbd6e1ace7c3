"""What recipes of language models share, whatever they guess.

    settings ─▶ shape (what the organiser looks up) + config_guard: one JSON object, a model of it
    text/ ─▶ recipe: tokenizer, held-out documents and rows that ship with the run; export

Read: settings (what run specs say), recipe (what is done with text, and with a model of any architecture), shape (from
names to the configuration of a model), config_guard (its bounds), export (a directory that transformers loads).

Called by causal_lm, masked_lm and recipes for one architecture.
"""
