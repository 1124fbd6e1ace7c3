"""An order of vectors that depends on nothing but their bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

_FIRST_ELEMENTS: Final = 1 << 6
_MOST_ELEMENTS: Final = 1 << 16
"""Copies of a row must not cost a pass over the memory."""


def lexicographic_order(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> list[int]:
    """Indices of float32 `vectors` [numel], ordered by the bits of their first differing element, then by weight.

    Those that agree in their first 2^16 elements and in weight keep their order.
    """
    groups = [list(range(len(vectors)))]
    start, length = 0, _FIRST_ELEMENTS
    while start < min(vectors[0].numel(), _MOST_ELEMENTS) and any(len(group) > 1 for group in groups):
        part = slice(start, start + length)
        groups = [finer for group in groups for finer in _split(group, vectors, part)]
        start, length = part.stop, 4 * length
    return [index for group in groups for index in sorted(group, key=lambda index: weights[index])]


def _split(group: list[int], vectors: Sequence[torch.Tensor], part: slice) -> list[list[int]]:
    """Ordered groups of those that are equal within `part`."""
    if len(group) == 1:
        return [group]
    pieces = [vectors[index][part].view(torch.int32) for index in group]
    if all(torch.equal(piece, pieces[0]) for piece in pieces[1:]):
        return [group]
    bits = torch.stack(pieces)
    first = int((bits != bits[0]).any(0).nonzero()[0])
    by_value: dict[int, list[int]] = {}
    for index, value in zip(group, bits[:, first].tolist(), strict=True):
        by_value.setdefault(value, []).append(index)
    return [finer for value in sorted(by_value) for finer in _split(by_value[value], vectors, part)]
