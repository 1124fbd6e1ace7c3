"""Captions with pictures or codes, from where the settings say.

    openmoji, shapes ─▶ compositions ─┐
    a folder ─────────────────────────┼─▶ pictures ─▶ tokens ─▶ pairs, which travel with the run
    a data set ─▶ rows ───────────────┘
                   └─ with codes: each peer reads them by itself

Read: openmoji and shapes (drawings with names), compositions (drawings on backgrounds), pictures (to train on and held
out), folders (pictures of this machine, with captions, for a run or in the place of its pairs), rows (of data sets and
files: filters, captions, codes).

Called by prepare and recipe.
"""
