"""Codecs that send a part of a vector: which elements, and their values.

    uploads    topk · gaussiank · randomk    leave most out and need a residual
    downloads  union · gtopk                 take the mean of such uploads back

Read: elias_fano (increasing numbers in few bits), sparse_codec (what these codecs share), kept_values (the values of
the elements that are sent), topk (topk and gtopk), counted_blocks (union and gaussiank), randomk.

Made by name in codecs/registry; docs/compressors.md says which to choose.
"""
