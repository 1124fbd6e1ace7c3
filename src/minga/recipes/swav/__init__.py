"""SwAV: features of pictures, learned without labels by assigning crops of a picture to the same prototypes.

    pictures ─▶ files of the run ─▶ crops ─▶ model (and its loss) ─▶ training
        └─▶ (each peer, of what does not travel) ──▶ └─▶ evaluation, export (for transformers)

Read: recipe (entry), settings (its part of the run spec, sizes), pictures (of one size; files; data sets; what the
organiser makes of them, and a peer of its own), crops (random ones, by arrays or one by one, and batches of them),
model (a ResNet of transformers with a head and prototypes; the loss), evaluation (held-out figures, pictures that are
alike), export (a folder that transformers loads).

Called by registry.
"""
