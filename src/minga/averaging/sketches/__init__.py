"""Linear maps whose images are averaged in the place of the vector: fewer numbers, or other ones.

    vector ── projection: add what was left out ─▶ interface: project ─▶ values ─▶ a round
                                                  expand ◀─ the mean of the values ◀─┘

Read: interface (the sketch seam, and sketches by name), projection (one peer's sketch at work, with what it leaves out
kept for later, also where fragments of the vector take turns), powersgd (low-rank factors of matrices), dct64 (cosine
coefficients of blocks).

Called by training/replica. It works on codecs/layout; rounds and codecs know nothing of sketches.
"""
