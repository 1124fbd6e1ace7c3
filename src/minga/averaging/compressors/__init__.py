"""Codecs that send a part of a vector: which elements, and their values.

    uploads    topk · gaussiank · randomk    leave most out and need a residual
    downloads  union · gtopk                 take the mean of such uploads back

Read: sparse_codec (what these codecs share, then union and gaussiank), topk (topk, gtopk and randomk).

Made by name in codecs/registry; docs/compressors.md says which to choose.
"""
