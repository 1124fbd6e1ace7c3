"""Captions with pictures or codes, from where the settings say.

    openmoji, shapes ─▶ compositions ─┐
    a folder ─────────────────────────┼─▶ pictures ─▶ tokens ─▶ pairs, which travel with the run
    a data set ─▶ rows ───────────────┘
                   └─ with codes: each peer reads them by itself

Read: openmoji and shapes (drawings with names), compositions (drawings on backgrounds), pictures (to train on and held
out), folders (pictures of this machine, with captions), rows (of data sets and files: filters, captions, codes),
own_pictures (a peer's folder in the place of the run's pairs).

Called by prepare and recipe.
"""
