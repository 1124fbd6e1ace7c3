"""Pictures as data and as results, for every recipe that has some.

    files, bytes ─▶ loading ─▶ arrays of whole numbers ─▶ ranking ─▶ grid ─▶ PNG

Read: loading (bounded and square), content_rank (which are held out), grid (many on one sheet), ranking (those that
fit a text best).

Called by recipes and by the commands that show samples. Importing it imports Pillow, and no torch.
"""
