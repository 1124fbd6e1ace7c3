"""Is a gradient that was computed again the same? Hardware that rounds differently makes that a matter of degree.

A validator compares what its target claims of its parts with what would be true of the gradient that it computes
itself (BTARD sections 4.3, 4.9 and 12.5). For that it needs no byte of the target, so nobody can hide a part, and no
slow line decides. And the claims are what matters: an aggregate passes V2 only if all of them fit it, so who sends
another part than it claims, and is not found by the aggregator, has changed nothing.

Let e be the relative error of a part. Clipping lengthens no difference, so the norms differ by at most e, and random
projections by about e (the square root of their mean square) and never by `KAPPA` = 8 times as much, since both parts
are fixed before the directions are drawn. Two thresholds keep honest peers on both sides of a dispute from harm. Let h
be the largest e between honest peers, measured on the kinds of devices of the run:

    convict at 10 h      the accused peer goes if most see more than that; an honest target shows at most 8 h
    accuse from 30 h on  if one honest peer sees 30 h, another, whose gradient is within h of that of the first, sees at
                         least 22 h: the accusation is confirmed, and its honest author does not go instead

Below 30 h a validator says nothing. So an attacker may add an error of about 30 h in each step unpunished, and the
thresholds have a ceiling, under which that is harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from minga.core.errors import ConfigurationError
from minga.security.verification.claims import PartClaim, relative
from minga.security.verification.count_sketch import Vector, distance, norm

HIGHEST_THRESHOLD: Final = 1e-2
LOWEST_CONVICTION: Final = 1e-5
"""Where honest peers agree to the last bits: float32 sums of another order would not be convicted."""
_CONVICT_FACTOR: Final = 10.0
_HYSTERESIS_FACTOR: Final = 3.0
_SMALL_PART: Final = 0.01


@dataclass(frozen=True, slots=True)
class GradientTolerance:
    """Thresholds for relative errors: from `accuse` on a target is accused, above `convict` it goes.

    Raises `ConfigurationError` unless 0 < `convict` < `accuse` <= 1e-2.
    """

    convict: float
    accuse: float

    def __post_init__(self) -> None:
        if not 0.0 < self.convict < self.accuse <= HIGHEST_THRESHOLD:
            raise ConfigurationError(
                f"thresholds {self.convict} and {self.accuse} for recomputed gradients must rise, "
                f"from above 0 to at most {HIGHEST_THRESHOLD}"
            )

    @classmethod
    def calibrated(cls, honest_errors: Iterable[float]) -> GradientTolerance:
        """Return the thresholds for errors seen between honest peers on all kinds of devices of the run.

        Raises `ConfigurationError` if there are none, or if they are so large that an attack would hide among them:
        then validators and targets need devices or kernels that agree better.
        """
        errors = tuple(honest_errors)
        if not errors or not all(0.0 <= error < math.inf for error in errors):
            raise ConfigurationError("calibration needs the errors of honest peers, finite and not negative")
        convict = max(_CONVICT_FACTOR * max(errors), LOWEST_CONVICTION)
        if convict * _HYSTERESIS_FACTOR > HIGHEST_THRESHOLD:
            largest = HIGHEST_THRESHOLD / _HYSTERESIS_FACTOR / _CONVICT_FACTOR
            raise ConfigurationError(
                f"honest peers differ by {max(errors):.2g} in their gradients, more than {largest:.2g}: "
                "let them compute in float32 with deterministic kernels, or validate within one kind of device"
            )
        return cls(convict, convict * _HYSTERESIS_FACTOR)

    def accuses(self, error: float) -> bool:
        """Whether a validator that sees this relative error (or none that is a number) accuses its target."""
        return not error < self.accuse

    def convicts(self, error: float) -> bool:
        """How a peer votes about an accusation after it has computed the gradient too."""
        return not error <= self.convict


def sampled_error(sent: Vector, recomputed: Vector, whole_norm: float, numel: int) -> float:
    """Return what a sample says of the relative error of a whole gradient, of `numel` elements and that norm.

    The sample counts with at least the norm that an even distribution would give it: then the square of the error is
    on average, over all samples, that of the whole, and a place where the gradient is nearly 0 says nothing by itself.
    Raises `ValueError` unless both samples have the same length.
    """
    even = whole_norm * math.sqrt(len(recomputed) / numel) if numel else 0.0
    return relative(distance(sent, recomputed), max(norm(recomputed), even))


def claimed_errors(
    claimed: Sequence[PartClaim | None],
    true: Sequence[PartClaim | None],
    norms: Sequence[float],
    numels: Sequence[int],
) -> list[float]:
    """Return the relative error of each part of a gradient by what its sender `claimed`, and what is `true` of the
    recomputed parts, which have these norms and numbers of elements; infinite where one of the claims is missing.

    An error is relative to the distance from the aggregate where that is longer than the part: claims are about that
    distance, and no more exact than it is.
    """
    errors = []
    for theirs, own, scale in zip(claimed, true, _scales(norms, numels), strict=True):
        if theirs is None or own is None:
            errors.append(math.inf)
        else:
            length = math.dist(theirs.projections, own.projections) / math.sqrt(len(own.projections))
            errors.append(relative(max(length, abs(theirs.norm - own.norm)), max(scale, own.norm)))
    return errors


def _scales(norms: Sequence[float], numels: Sequence[int]) -> list[float]:
    """What the errors of parts are relative to: their norms, but at least 1 % of what an even distribution would give
    them, for a part that is 0 up to rounding has no relative error of its own.
    """
    total, whole = math.hypot(*norms), max(1, sum(numels))
    return [max(own, _SMALL_PART * total * math.sqrt(numel / whole)) for own, numel in zip(norms, numels, strict=True)]
