"""How slices of a float32 vector travel, and where the vector is cut.

    tensor ─▶ layout (segments, chunks) ─▶ interface: encode ─▶ bytes ─▶ interface: decode_add ─▶ tensor
                                              └─ dense: float32, float16 …; quantizers and compressors have more

Read: interface (the codec seam), dense (float32, float16, bfloat16, and the codec of a choice), layout (which codec
each element takes, the chunks, and how one is received), seeds (what codecs may draw from), residual (which vector each
round averages, and what lossy uploads of it leave out, kept for the next round), registry (codecs by name),
tensor_bytes (bytes as tensors without copies).

Called by allreduce, sketches, security/parts and training/replica. Bytes of others are checked before an element is
written.
"""
