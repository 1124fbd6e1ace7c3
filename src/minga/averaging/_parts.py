"""Who reduces how much: parts of the vector in proportion to bandwidth.

Each of n peers sends every part that is not its own to the part's aggregator, and each aggregator sends its result to
the n - 1 others. With the fraction x_i of the vector, peer i moves (1 + (n - 2) x_i) vectors in each direction, so
that a round takes T = vector bytes * xi with xi = max_i (1 + (n - 2) x_i) / b_i over the peers with b_i > 0. Clients
(b_i = 0) own nothing. The smallest possible xi is

    xi* = max( (n - 2 + s) / sum b_i,  1 / min b_i )        over the s peers with b_i > 0.

Where the second term wins, the slowest peer is busy with its own gradient alone and many plans are optimal. The one
taken here is water filling: the level L with sum_i max(0, (L b_i - 1) / (n - 2)) = 1 over the faster peers, so that
these finish as early as they can too. Any split is optimal for n = 2; equal parts share the arithmetic best.
Integers come from Hagenbach-Bischoff rounding, in integer arithmetic, so that every machine gets the same plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

SLOWEST_BANDWIDTH: Final = 1e-9
FASTEST_BANDWIDTH: Final = 1e18


class NoAggregatorError(ValueError):
    """Nobody in the group can be reached by the others, so nobody can reduce."""


def fill_in(bandwidths: Sequence[float | None]) -> tuple[float, ...]:
    """Replace each None by the mean of the given positive bandwidths (by 1 if there are none).

    Raises `ValueError` for a bandwidth that is neither 0 nor within 1e-9 to 1e18, or for an empty group.
    """
    if not bandwidths:
        raise ValueError("a group has at least one peer")
    for index, given in enumerate(bandwidths):
        if given is not None and given != 0 and not SLOWEST_BANDWIDTH <= given <= FASTEST_BANDWIDTH:
            raise ValueError(f"bandwidth {index} is {given}; it must be None, 0 or 1e-9 to 1e18")
    positive = [float(given) for given in bandwidths if given]
    mean = math.fsum(positive) / len(positive) if positive else 1.0
    return tuple(mean if given is None else float(given) for given in bandwidths)


def shares(bandwidths: Sequence[float | None]) -> tuple[float, ...]:
    """The fraction of the vector that each peer aggregates; they sum to 1 up to rounding.

    `bandwidths` is the smaller of upload and download rate of each peer, in any common unit; 0 is a client, None an
    unknown rate. A group of one keeps the whole vector even if it is a client.
    Raises `NoAggregatorError` if all of several peers are clients, and as `fill_in` does.
    """
    rates = fill_in(bandwidths)
    count = len(rates)
    if count == 1:
        return (1.0,)
    serving = sorted((rate for rate in rates if rate), reverse=True)
    if not serving:
        raise NoAggregatorError("nobody in the group can be reached by the others: at least one peer must be no client")
    if count == 2:
        return tuple(1.0 / len(serving) if rate else 0.0 for rate in rates)
    level = _level(serving, count)
    return tuple(max(0.0, (level * rate - 1.0) / (count - 2)) if rate else 0.0 for rate in rates)


def _level(serving: Sequence[float], count: int) -> float:
    """The water level: the cost of each owner of a part; `serving` is sorted, the fastest first."""
    for owners in range(len(serving), 1, -1):
        level = (count - 2 + owners) / math.fsum(serving[:owners])
        if level * serving[owners - 1] >= 1.0:
            return level
    return (count - 1) / serving[0]


def part_sizes(numel: int, bandwidths: Sequence[float | None], *, min_part: int = 0) -> tuple[int, ...]:
    """Elements that each peer aggregates, in the order of `bandwidths`: integers >= 0 that sum to `numel`.

    Peers whose share is below `min_part` elements own nothing, unless nobody's share reaches it.
    Raises `ValueError` for a negative `numel` or `min_part`, and as `shares` does.
    """
    if numel < 0 or min_part < 0:
        raise ValueError(f"numel {numel} and min_part {min_part} must not be negative")
    fractions = shares(bandwidths)
    if max(fractions) * numel >= min_part:
        fractions = tuple(0.0 if fraction * numel < min_part else fraction for fraction in fractions)
    return allocate(numel, fractions)


def allocate(numel: int, fractions: Sequence[float]) -> tuple[int, ...]:
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
