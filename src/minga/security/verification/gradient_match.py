"""Is a gradient that was computed again the same? Hardware that rounds differently makes that a matter of degree.

A validator compares what its target sent with what it computes itself, by the relative error e of each part and of the
whole (BTARD sections 4.9 and 12.5). Two thresholds keep honest peers on both sides of a dispute from harm. Let h be the
largest error between honest peers, measured on the kinds of devices of the run:

    convict at 10 h      the accused peer goes if most see more than that; an honest target shows at most h
    accuse from 30 h on  if one honest peer sees 30 h, another, whose gradient is within h of that of the first, sees
                         nearly as much: the accusation is confirmed, and its honest author does not go instead

Below 30 h a validator says nothing. So an attacker may add an error of up to 30 h in each step unpunished, and the
thresholds have a ceiling, under which that is harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from minga.core.errors import ConfigurationError
from minga.security.verification.claims import relative
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


def gradient_error(sent: Sequence[Vector], recomputed: Sequence[Vector]) -> float:
    """Return the largest relative error of a gradient given in parts, over the parts and the whole.

    A part counts with at least 1 % of the norm that an even distribution would give it: a part that is 0 up to
    rounding has no relative error of its own. Raises `ValueError` unless the parts have the same lengths.
    """
    errors = [distance(theirs, own) for theirs, own in zip(sent, recomputed, strict=True)]
    norms = [norm(own) for own in recomputed]
    total, numel = math.hypot(*norms), sum(len(own) for own in recomputed)
    worst = relative(math.hypot(*errors), total)
    for error, own_norm, own in zip(errors, norms, recomputed, strict=True):
        if len(own):
            least = _SMALL_PART * total * math.sqrt(len(own) / numel)
            worst = max(worst, relative(error, max(own_norm, least)))
    return worst
