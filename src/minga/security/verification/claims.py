"""What each sender claims about its part, projections and a norm, and how far honest numbers may be apart.

An aggregator's result v of the parts x_i is right if it solves the fixed-point equation of CenteredClip,

    Σ D_i = 0      with      D_i = min(1, τ / N_i) · (x_i - v),      N_i = ‖x_i - v‖,

however it was found. Nobody but the aggregator has all x_i; but each sender has its own, and v. So it publishes
s_i = <z, D_i> for q random directions z that were drawn after v was fixed, and N_i. If R = Σ D_i is not 0, then
neither is Σ s_i = <z, R>, which everybody can add up (BTARD section 4.3).

The x_i is what the receivers decode from the wire, not what it was before it was encoded: only of that there is a hash.
Everybody who has the same x_i and v gets the same bits, and needs memory for a block only: sums are in a fixed order,
and each operation is an IEEE 754 one on its own, so that no machine multiplies and adds without rounding between them.
Differences are float32, and so are the sums over a few blocks; those over all blocks are float64. Where squares leave
the range of float32 all sums are float64. Clipping scales the whole difference, so one pass suffices: the sum over
z · (x_i - v) is scaled once N_i is known.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from minga.core.errors import ConfigurationError
from minga.network.interface import PeerId
from minga.security.robust.rows import ordered_sum
from minga.security.verification.count_sketch import (
    BLOCK,
    ENTRY_DEVIATION,
    MAX_DIRECTIONS,
    Directions,
    PartSketch,
    Vector,
    blocks,
    difference,
    length,
)

CLAIM_LIMIT: Final = 2.0**128
"""Larger than any claim about elements that averaging accepts; keeps sums of claims finite."""

_AT_ONCE: Final = 16
"""Blocks that are added up in single precision: twice as many save next to nothing, and lose a bit."""
_LEAST_SQUARE: Final = 2.0**-100
"""The least mean of squares of which float32 loses nothing that counts."""

Floats = npt.NDArray[np.float32]


class PartClaim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sender's claim about one part: `projections` of D on each direction, scaled to unit variance, and `norm` N.

    Raises `ValueError`, also where one is decoded from the wire, for numbers that are not finite, too large, or a
    negative norm.
    """

    projections: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=MAX_DIRECTIONS)]
    norm: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.norm <= CLAIM_LIMIT:
            raise ValueError(f"the norm of a claim must be from 0 to 2**128, not {self.norm}")
        if not all(-CLAIM_LIMIT <= projection <= CLAIM_LIMIT for projection in self.projections):
            raise ValueError(f"the projections of a claim must be within ±2**128: {self.projections}")


def clip_factor(norm: float, radius: float) -> float:
    """By what a difference of this norm is scaled to lie within the clipping radius τ."""
    return 1.0 if norm <= radius else radius / norm


def claims(parts: Sequence[Vector], result: Vector, radius: float, directions: Directions) -> list[PartClaim | None]:
    """Return for each of `parts`, 1-D and finite, the claim of its sender about the aggregator's `result` of the same
    length; None for a part that is too far away: whatever is claimed of that is false.

    All are float32. `radius` is τ; `directions` are those of the part. Raises `ValueError` where lengths differ.
    """
    if any(part.shape != result.shape for part in parts):
        raise ValueError(f"a part has another length than the result, which has {len(result)} elements")
    value, summing = _floats(result), _Summing(PartSketch(directions, len(result)))
    return [summing.claim(_floats(part), value, radius) for part in parts]


class _Precision:
    """Memory for the differences of a block, and for the sums over some blocks, in one precision."""

    def __init__(self, dtype: type[np.floating]) -> None:
        self.sums, self.values = np.empty(3 * BLOCK, dtype), np.empty(BLOCK, dtype)


class _BlockMemory(threading.local):
    """Of one thread, for one part after the other: to get fresh memory takes longer than to fill it."""

    def __init__(self) -> None:
        self.single, self.double = _Precision(np.float32), _Precision(np.float64)
        self.sums = np.empty(3 * BLOCK)


_memory = _BlockMemory()


class _Summing:
    """Makes claims about parts by one sketch.

    Every element passes here twice in each step, at its sender and at its aggregator, and bytes that leave the cache of
    the core are what that costs. So up to `_AT_ONCE` blocks are added up in single precision. The signs go into the
    squares as well, which do not tell.
    """

    def __init__(self, sketch: PartSketch) -> None:
        self._sketch, self._blocks = sketch, list(sketch.blocks())
        self._squares = min(sketch.numel, BLOCK)
        self._sums = _memory.sums[: self._squares + sketch.width]

    def claim(self, part: Floats, result: Floats, radius: float) -> PartClaim | None:
        """See the function `claims`."""
        squared = self._add_up(part, result, _memory.single)
        if not _LEAST_SQUARE * len(part) <= squared < math.inf:
            squared = self._add_up(part, result, _memory.double)
        norm, buckets = math.sqrt(squared), self._sums[self._squares :]
        factor = clip_factor(norm, radius)
        sums = ordered_sum(np.multiply(self._sketch.coefficients, buckets))
        projections = tuple(factor * (each / ENTRY_DEVIATION) for each in sums.tolist())
        return PartClaim(projections, norm) if max(norm, *map(abs, projections)) <= CLAIM_LIMIT else None

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def _add_up(self, part: Floats, result: Floats, precision: _Precision) -> float:
        """Add up the squares of the differences by place in the block, and behind them the sketch of the differences.

        Return the sum of the squares.
        """
        some, narrow, values = precision.sums[: len(self._sums)], _memory.single.values, precision.values
        squares, buckets = some[: self._squares], some[self._squares :]
        self._sums.fill(0.0)
        some.fill(0.0)
        for count, (place, signs, turn, bucket) in enumerate(self._blocks, 1):
            size = len(signs)
            if size < len(narrow):
                squares, narrow, values = squares[:size], narrow[:size], values[:size]
            np.subtract(part[place], result[place], narrow)
            np.multiply(narrow, signs, values)
            met = buckets[bucket : bucket + size]
            (np.add if turn > 0 else np.subtract)(met, values, met)
            np.multiply(values, values, values)
            np.add(squares, values, squares)
            if count % _AT_ONCE == 0 or count == len(self._blocks):
                np.add(self._sums, some, self._sums)
                some.fill(0.0)
        return float(ordered_sum(self._sums[: self._squares]))


def _floats(vector: Vector) -> Floats:
    return np.ascontiguousarray(vector, np.float32)


def residual_norm(
    parts: Mapping[PeerId, Vector],
    norms: Mapping[PeerId, float],
    result: Vector,
    radius: float,
) -> float:
    """Return ‖Σ D_i‖, by how much `result` misses the fixed point; `norms` are the true N_i.

    Parts are taken in the order of their senders' ids, so that the bits are the same everywhere.
    """
    factors = {sender: clip_factor(norms[sender], radius) for sender in sorted(parts)}

    def residual(block: slice) -> npt.NDArray[np.float64]:
        total = np.zeros(block.stop - block.start)
        for sender, factor in factors.items():
            total += factor * difference(parts[sender][block], result[block])
        return total

    return length(map(residual, blocks(len(result))))


# ---- Tolerances: how far honest numbers may be apart, by bounds that follow from the arithmetic and need no tuning.
#
# **The fixed point (V2).** An honest aggregator stops when ‖Σ D_i‖ ≤ n · ε for n senders. Two things are added to that
# before the others see the result v. The solver's arithmetic may be float32, which costs a few units of 2⁻²⁴ τ for each
# sender, and so are the differences in claims and their sums over some blocks: two units more, or up to eight times the
# share of one whose part is made for that. And v is rounded to float32, in which it travels, which moves it by some e.
# Clipping to a ball never lengthens distances, so each D_i moves by at most e, and
#
#     ‖Σ D_i‖  ≤  n · (ε + ε_fp + e).
#
# Of a random direction of unit variance P(|<z, R>| > κ‖R‖) ≤ 2 exp(-κ²/2), so κ = 8 flags one honest sum in 10¹³ at
# most (BTARD section 4.4, with e added; where all directions share a sketch, κ is that much less for the few that
# lengthen R). Every term is known to everybody: the others compute e from the norm of the v that they received. A v
# that is far too long therefore buys its aggregator a tolerance that is longer by 2⁻²⁴ of that, but raises a doubt by
# the norms, and who has the bytes goes by no greater length than a fixed point of them can have.
#
# **Claims (V1).** Two peers with the same bytes get the same claim to the last bit on IEEE 754 hardware;
# `CLAIM_TOLERANCE` leaves room for other orders of summation (earlier builds had all sums in float64, and their
# evidence of honest steps stands), and is a sixteenth of ε: liars who stay within it cannot hide anything from V2.


KAPPA: Final = 8.0
"""A projection longer than this many times its deviation does not happen by chance."""
CLAIM_TOLERANCE: Final = 2.0**-20
"""Largest deviation of a claim, relative to the length of what it is about."""
_ARITHMETIC: Final = 6 * 2.0**-24
_ROUNDING, _LEAST_ROUNDING = 2.0**-24, 2.0**-150
"""By how much an element changes when it is rounded to float32: relative, and at least."""


@dataclass(frozen=True, slots=True)
class ResultAccuracy:
    """What an aggregator promises: its solver stops at a residual of `stop` · τ for each sender.

    Raises `ConfigurationError` for a stop outside 1e-12 to 1e-2.
    """

    stop: float

    def __post_init__(self) -> None:
        if not 1e-12 <= self.stop <= 1e-2:
            raise ConfigurationError(f"stop: {self.stop} is not from 1e-12 to 1e-2 clipping radii")

    def residual_limit(self, senders: int, radius: float, result_norm: float, numel: int) -> float:
        """Return n · (ε + ε_fp + e), the largest ‖Σ D_i‖ of an honest result of n `senders`.

        `radius` is τ; `result_norm` the norm of the result as it was received, of `numel` elements.
        """
        rounding = _ROUNDING * result_norm + _LEAST_ROUNDING * math.sqrt(numel)
        return senders * ((self.stop + _ARITHMETIC) * radius + rounding)

    def sum_limit(self, senders: int, radius: float, result_norm: float, numel: int) -> float:
        """Return the largest |Σ s_i| that V2 lets pass, κ times `residual_limit`."""
        return KAPPA * self.residual_limit(senders, radius, result_norm, numel)


def claim_deviation(claimed: PartClaim, recomputed: PartClaim, radius: float) -> float:
    """Return by how much a claim deviates from the same claim recomputed, relative to its true lengths.

    Norms are compared relative to N, projections relative to the clipped length min(N, τ). Infinite if the lengths are
    0 and the claims differ, or if the claims are about different numbers of directions.
    """
    if len(claimed.projections) != len(recomputed.projections):
        return math.inf
    length = min(recomputed.norm, radius)
    pairs = zip(claimed.projections, recomputed.projections, strict=True)
    of_projections = max(relative(abs(theirs - own), length) for theirs, own in pairs)
    return max(of_projections, relative(abs(claimed.norm - recomputed.norm), recomputed.norm))


def relative(deviation: float, scale: float) -> float:
    """Return `deviation` / `scale`; 0 if there is no deviation, infinite if there is one from nothing."""
    if deviation == 0.0:
        return 0.0
    return deviation / scale if scale > 0.0 else math.inf
