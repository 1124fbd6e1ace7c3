"""Linear maps whose images are averaged in the place of the vector: fewer numbers, or other ones.

    vector ── projection: add what was left out ─▶ interface: project ─▶ values ─▶ a round
                                                  expand ◀─ the mean of the values ◀─┘

Read: interface (the sketch seam), projection (one peer's sketch at work, with what it leaves out kept for later),
round_projections (where fragments of the vector take turns), powersgd (low-rank factors of matrices), orthonormal
(their bases), dct64 (cosine coefficients of blocks), cosine_transform (of 64 numbers), registry (sketches by name).

Called by training/replica. It works on codecs/layout; rounds and codecs know nothing of sketches.
"""
