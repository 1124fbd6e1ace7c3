"""How far honest numbers may be apart: bounds that follow from the arithmetic, so that nobody has to tune them.

**The fixed point (V2).** An honest aggregator stops when ‖Σ w_i D_i‖ ≤ W · ε, W being the sum of the weights. Two
things are added to that before the others see the result v. The solver's arithmetic may be float32, which costs a few
units of 2⁻²⁴ τ for each sender, and so are the differences in claims and their sums over some blocks: two units more,
or up to eight times the share of one whose part is made for that. And v is rounded to float32, in which it travels,
which moves it by some e. Clipping to a ball never lengthens distances, so each D_i moves by at most e, and

    ‖Σ w_i D_i‖  ≤  W · (ε + ε_fp + e).

Of a random direction of unit variance P(|<z, R>| > κ‖R‖) ≤ 2 exp(-κ²/2), so κ = 8 flags one honest sum in 10¹³ at most
(BTARD section 4.4, with e added; where all directions share a sketch, κ is that much less for the few that lengthen R).
Every term is known to everybody: the others compute e from the norm of the v that
they received. A v that is far too long therefore buys its aggregator a tolerance that is longer by 2⁻²⁴ of that only.

**Claims (V1).** Two peers with the same bytes get the same claim to the last bit on IEEE 754 hardware;
`CLAIM_TOLERANCE` leaves room for other orders of summation (earlier builds had all sums in float64, and their
evidence of honest steps stands), and is a sixteenth of ε: liars who stay within it cannot hide anything from V2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from minga.core.errors import ConfigurationError
from minga.security.verification.claims import PartClaim

KAPPA: Final = 8.0
"""A projection longer than this many times its deviation does not happen by chance."""
CLAIM_TOLERANCE: Final = 2.0**-20
"""Largest deviation of a claim, relative to the length of what it is about."""
_ARITHMETIC: Final = 6 * 2.0**-24
_ROUNDING, _LEAST_ROUNDING = 2.0**-24, 2.0**-150
"""By how much an element changes when it is rounded to float32: relative, and at least."""


@dataclass(frozen=True, slots=True)
class ResultAccuracy:
    """What an aggregator promises: its solver stops at a residual of `stop` · τ · W.

    Raises `ConfigurationError` for a stop outside 1e-12 to 1e-2.
    """

    stop: float

    def __post_init__(self) -> None:
        if not 1e-12 <= self.stop <= 1e-2:
            raise ConfigurationError(f"stop: {self.stop} is not from 1e-12 to 1e-2 clipping radii")

    def residual_limit(self, total_weight: int, radius: float, result_norm: float, numel: int) -> float:
        """Return W · (ε + ε_fp + e), the largest ‖Σ w_i D_i‖ of an honest result.

        `radius` is τ; `result_norm` the norm of the result as it was received, of `numel` elements.
        """
        rounding = _ROUNDING * result_norm + _LEAST_ROUNDING * math.sqrt(numel)
        return total_weight * ((self.stop + _ARITHMETIC) * radius + rounding)

    def sum_limit(self, total_weight: int, radius: float, result_norm: float, numel: int) -> float:
        """Return the largest |Σ w_i s_i| that V2 lets pass, κ times `residual_limit`."""
        return KAPPA * self.residual_limit(total_weight, radius, result_norm, numel)


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
