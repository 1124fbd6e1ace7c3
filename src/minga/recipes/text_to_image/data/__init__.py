"""Captions with pictures or codes, from where the settings say.

    openmoji ─▶ compositions ─┐
    a folder ─────────────────┼─▶ pictures ─▶ tokens ─▶ pairs, which travel with the run
    sources ─▶ rows ──────────┘
               rows with codes ─▶ stream: each peer reads them by itself

Read: openmoji (drawings with names), compositions (drawings on backgrounds), pictures (to train on and held out),
folders (pictures of this machine, with captions), sources (data sets, files), rows (filters, captions, codes), stream
(an endless order), own_pictures (a peer's folder in the place of the run's pairs).

Called by prepare and recipe.
"""
