"""Crops of pictures, changed at random, with all chance from NumPy.

    crop_boxes ─▶ arrays (small pictures of one size, all at once; colour) ─▶ crops of whole numbers
              └─▶ encoded (files of any size, one by one, by Pillow) ────────▶

Read: crop_rule (one kind of crops), crop_boxes (which part of a picture), arrays (crops by tensor arithmetic), colour
(changes of colour), encoded (crops of files).

Called by the recipe's batches and evaluation.
"""
