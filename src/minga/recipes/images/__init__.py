"""Pictures as data and as results, for every recipe that has some.

    source (a folder, a data set) ─▶ loading (bounded, square arrays of whole numbers)
    pictures with captions ─▶ grid ─▶ PNG

Read: source (where they come from, and the files of pictures in it), loading (bounded and square), grid (many on one
sheet).

Called by recipes and by the commands that show samples. Importing loading or grid imports no torch.
"""
