"""Codecs that send every element in 1 to 9 bits: what they keep, their bytes, bounds and constants.

    float32 slice ─▶ blocks: a scale each, and codes ─▶ bytes      int8, int4, float8, e3m0
                  └▶ a sign and a power of two each ─▶ bytes       natural
                  └▶ signs, and a mean for each block ─▶ bytes     sign, with a residual

Read: blocks (what the codecs with a scale for each block share, and rounding: to nearest, or at random from a seed),
int8, int4, float8, powers (e3m0 and natural), sign.

Made by name in codecs/registry; docs/compressors.md says which to choose.
"""
