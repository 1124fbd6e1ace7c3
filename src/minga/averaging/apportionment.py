"""From fractions of the vector to whole elements."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


class NoAggregatorError(ValueError):
    """Nobody in the group can be reached by the others, so nobody can reduce."""


def apportion(numel: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """Split `numel` in proportion to `fractions` by Hagenbach-Bischoff: quotas rounded down, and each unit left over
    to the largest fraction / (units + 1); of equals, to the one with fewest units, then to the first.

    Computed on integers of 40 bits, which hides the rounding of the fractions: the same everywhere.

    Raises `ValueError` unless all fractions are >= 0, finite and one is positive.
    """
    if not fractions or not all(0.0 <= fraction < math.inf for fraction in fractions) or not any(fractions):
        raise ValueError("fractions must be finite and not negative, and one of them positive")
    largest = max(fractions)
    votes = [round(fraction / largest * 2**40) for fraction in fractions]
    total = sum(votes)
    sizes = [numel * vote // total for vote in votes]
    counted = enumerate(zip(votes, sizes, strict=True))
    queue = [(-vote / (size + 1), size, index) for index, (vote, size) in counted if vote]
    heapq.heapify(queue)
    for _ in range(numel - sum(sizes)):
        _, size, index = queue[0]
        sizes[index] = size + 1
        heapq.heapreplace(queue, (-votes[index] / (size + 2), size + 1, index))
    return tuple(sizes)
