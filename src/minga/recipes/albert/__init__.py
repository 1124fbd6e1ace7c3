"""ALBERT: masked language model and sentence order, on pairs of segments, with one block of weights for all layers.

    masked_lm/ (data, masks, loss, evaluation) ─▶ recipe ─▶ training
                     sizes, model, facts: what ALBERT has of its own

Read: recipe (entry), settings (its part of the run spec), sizes (in which it builds its model), model (what is done
with transformers' ALBERT, and how its parameters begin), facts (what planning asks), sahajbert (the recipe that trained
ALBERT on Bengali).

Called by registry. The name ALBERT should appear in no other folder.
"""
