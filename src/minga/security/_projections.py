"""What each sender claims about its part: projections of its clipped difference from the result, and its norm.

An aggregator's result v of the parts x_i with weights w_i (samples) is right if it solves the fixed-point equation of
CenteredClip,

    Σ w_i D_i = 0      with      D_i = min(1, τ / N_i) · (x_i - v),      N_i = ‖x_i - v‖,

however it was found. Nobody but the aggregator has all x_i; but each sender has its own, and v. So it publishes
s_i = <z, D_i> for q random directions z that were drawn after v was fixed, and N_i. If R = Σ w_i D_i is not 0, then
neither is Σ w_i s_i = <z, R>, which everybody can add up (BTARD section 4.3).

The x_i is what the receivers decode from the wire, not what it was before it was encoded: only of that there is a hash.
Claims are computed in float64 and in a fixed order, block by block, so that everybody who has the same x_i and v gets
the same bits, and needs memory for a block only. Clipping scales the whole difference, so one pass suffices: the sum
over z · (x_i - v) is scaled once N_i is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np

from minga.network._interface import PeerId
from minga.security._directions import ENTRY_DEVIATION, MAX_DIRECTIONS, Directions
from minga.security._fixed_order import LANES, LaneSums, Vector, blocks, difference

CLAIM_LIMIT: Final = 2.0**128
"""Larger than any claim about elements that averaging accepts; keeps weighted sums of claims finite."""


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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


def claim(part: Vector, result: Vector, radius: float, directions: Directions) -> Claim:
    """Return the claim of the sender of `part`, 1-D and finite, about the aggregator's `result` of the same length.

    `radius` is τ; `directions` begin at the part's first element. Raises `ValueError` where lengths differ.
    """
    return claims([part], result, radius, directions)[0]


def claims(parts: Sequence[Vector], result: Vector, radius: float, directions: Directions) -> list[Claim]:
    """Return for each of `parts` the same claim, to the bit, as `claim`: each block of the directions is made once."""
    if any(part.shape != result.shape for part in parts):
        raise ValueError(f"a part has another length than the result, which has {len(result)} elements")
    sums = [LaneSums(directions.count + 1, len(result)) for _ in parts]
    products = np.empty((directions.count + 1, min(len(result), LANES)))
    for block in blocks(len(result)):
        entries = directions.entries(block.start, block.stop)
        filled = products[:, : block.stop - block.start]
        for part, part_sums in zip(parts, sums, strict=True):
            from_result = difference(part[block], result[block])
            np.square(from_result, out=filled[0])
            np.multiply(from_result, entries, out=filled[1:])
            part_sums.add(filled)
    return [_claim(part_sums.totals(), radius) for part_sums in sums]


def residual_norm(
    parts: Mapping[PeerId, Vector],
    weights: Mapping[PeerId, int],
    norms: Mapping[PeerId, float],
    result: Vector,
    radius: float,
) -> float:
    """Return ‖Σ w_i D_i‖, by how much `result` misses the fixed point; `norms` are the true N_i.

    Parts are taken in the order of their senders' ids, so that the bits are the same everywhere.
    """
    squares = LaneSums(1, len(result))
    factors = {sender: weights[sender] * clip_factor(norms[sender], radius) for sender in sorted(parts)}
    for block in blocks(len(result)):
        residual = np.zeros(block.stop - block.start)
        for sender, factor in factors.items():
            residual += factor * difference(parts[sender][block], result[block])
        squares.add(np.square(residual))
    return math.sqrt(squares.totals()[0])


def _claim(sums: Sequence[float], radius: float) -> Claim:
    """From the sum of squares of x - v and its products with the directions."""
    squares, *projections = sums
    norm = math.sqrt(squares)
    factor = clip_factor(norm, radius)
    return Claim(tuple(factor * (projection / ENTRY_DEVIATION) for projection in projections), norm)
