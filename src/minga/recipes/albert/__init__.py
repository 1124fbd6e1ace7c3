"""ALBERT: masked language model and sentence order, on pairs of segments, with one block of weights for all layers.

    masked_lm/ (data, masks, loss, evaluation) ─▶ recipe ─▶ training
                     model: what ALBERT has of its own

Read: recipe (entry), model (settings, sizes, how parameters begin), sahajbert (the recipe that trained ALBERT on
Bengali).

Called by registry. The name ALBERT should appear in no other folder.
"""
