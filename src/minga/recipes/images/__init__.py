"""Pictures as data and as results, for every recipe that has some.

    files, bytes ─▶ loading ─▶ arrays of whole numbers ─▶ grid ─▶ PNG

Read: loading (bounded and square), grid (many on one sheet).

Called by recipes and by the commands that show samples. Importing it imports Pillow, and no torch.
"""
