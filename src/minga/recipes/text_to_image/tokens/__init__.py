"""Image tokens: a picture as a grid of whole numbers, which a decoder can predict like words.

    pictures ─▶ fsq (encoder, quantiser) ─▶ codes ─▶ fsq (decoder) ─▶ pictures

Read: fsq (an auto-encoder around finite scalar quantisation), training (by the organiser, in `prepare`), stored (as
files of a run).

Called by prepare, evaluation and sampling of the recipe.
"""
