"""How far a result may be from the parts that it was made of (Δ_max of the norm check V3), and how far a step may go.

An aggregator and senders who collude can shift the result and make up projections that cancel the shift: the sum is 0,
and the only one who could check the projections is silent. But the shift makes the result *far from the honest parts*,
whose senders say so. BTARD (section 4.3) bounds it by Δ_max = (1 + √3) √2 sigma / √(n - m), with sigma / √(n - m) how
far a gradient's part is from its mean, for one of n - m equal parts. Here that dispersion is measured, part by part:

    Δ_j = (1 + √3) √2 · max(dispersion_j, τ_j / 2)

The radius is in it because attackers far away pull an honest result too: by less than τ as long as no honest part is
clipped, and by about 1.2 dispersions at 7 of 16 when τ is small. Honest norms are then about 1.6 times the larger of
the two, and V3 stays silent.

**What attackers can do to the measurement.** Its source are the norms that senders claim; of a part, their median (the
*typical norm*). Less than half of the senders cannot move that out of the range of the honest norms. But the aggregator
can: shifting the result makes all honest norms grow, and a bound taken from this part in this step would grow along. So
the dispersion is a product of two things on which it has no hold:

* a *reference*, the median of the part's typical norms in past steps (`DispersionHistory`). To move it, an aggregator
  must have shifted more than half of the remembered steps, each by less than the bound that was valid then: a factor
  of at most 3.9 for each half memory. Its helpers lie about projections in all of them, and validators catch one who
  lies in each step long before;
* the *growth* of all parts since then, the median over the parts of this step of typical norm / reference: when
  gradients get noisier everywhere, the bound follows at once. Aggregators of fewer than half of the parts cannot move
  it out of the range of the honest parts' growth. That presumes that attackers do not aggregate more than half of the
  parts, which a majority of honest members does not give by itself where many of these are clients.

Attackers who make their claims small in every part lower the bound at most to the smallest honest norm, which is near
the median where parts have many elements. All of this is computed from published numbers by operations that give the
same bits everywhere, so all peers find the same bound.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from minga.security.verification.count_sketch import LENGTH_STEP, rounded_length

NORM_FACTOR: Final = (1.0 + math.sqrt(3.0)) * math.sqrt(2.0)
REMEMBERED_STEPS: Final = 32


def dispersions(typical_norms: Sequence[float], references: Sequence[float]) -> tuple[float, ...]:
    """Return the dispersion of each part: its reference times the median growth over the parts that have one.

    Only ratios of references matter. All zero where no part has a reference.
    """
    growths = [now / before for now, before in zip(typical_norms, references, strict=True) if before > 0]
    growth = statistics.median_low(growths) if growths else 0.0
    return tuple(reference * growth for reference in references)


def norm_bound(dispersion: float, radius: float) -> float:
    """Return Δ_j of a part from its dispersion and clipping radius τ_j."""
    return NORM_FACTOR * max(dispersion, radius / 2)


class DispersionHistory:
    """The typical norms of past steps, of which the references of the next step are the medians.

    Peers that remember the same steps have the same references; newcomers get them with the `ProtocolState`.
    """

    def __init__(self, steps: int = REMEMBERED_STEPS) -> None:
        self._steps: deque[tuple[tuple[int, ...], tuple[float, ...]]] = deque(maxlen=steps)

    @property
    def steps(self) -> tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]:
        """What `add` was given for each remembered step."""
        return tuple(self._steps)

    def add(self, stops: Sequence[int], typical_norms: Sequence[float]) -> None:
        """Remember a step in which no check found anything; `stops`: the last element of each part, exclusive.

        Raises `ValueError` unless parts follow one another from element 0 on, with a norm for each.
        """
        if len(stops) != len(typical_norms) or list(stops) != sorted(stops) or (stops and stops[0] < 0):
            raise ValueError("each part needs a norm, and its end not before that of the part before it")
        self._steps.append((tuple(stops), tuple(typical_norms)))

    def are_known(self, stops: Sequence[int]) -> bool:
        """Whether a quarter of the steps that can be remembered were cut into these parts: where a step was cut into
        others, what a layer of long gradients adds to a part is a guess.
        """
        return sum(before == tuple(stops) for before, _ in self._steps) >= REMEMBERED_STEPS // 4

    def references(self, stops: Sequence[int]) -> tuple[float, ...]:
        """Return the reference of each part that ends at `stops`: the median over the remembered steps.

        Where a step was cut into other parts, the squared norm of each is spread evenly over its elements. Before
        any step is remembered, parts count by the square root of their length.
        """
        if not self._steps:
            return tuple(math.sqrt(stop - start) for start, stop in _ranges(stops))
        by_step = [_cut_anew(old_stops, norms, stops) for old_stops, norms in self._steps]
        return tuple(statistics.median(of_part) for of_part in zip(*by_step, strict=True))


def _ranges(stops: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip((0, *stops), stops, strict=False))


def _cut_anew(old_stops: Sequence[int], norms: Sequence[float], stops: Sequence[int]) -> list[float]:
    """The norms of other parts of the same vector."""
    old_ranges = _ranges(old_stops)
    found = []
    for start, stop in _ranges(stops):
        squares = 0.0
        for index in range(bisect_left(old_stops, start), len(old_stops)):
            left, right = old_ranges[index]
            if left >= stop:
                break
            shared = min(stop, right) - max(start, left)
            if shared > 0:
                squares += norms[index] * norms[index] * (shared / (right - left))
        found.append(math.sqrt(squares))
    return found


# ---- The bound of a single step, whichever peer made its aggregate.
#
# CenteredClip bounds what a hostile minority of those who contribute can do. But validators contribute nothing, and
# who validates is drawn: with 7 hostile members of 16 and two validators, in a step of every three half of the
# contributors are hostile, and then the aggregate is what they like. The members who apply it have seen how long those
# of the last steps were: one that is many times longer is shortened. Honest gradients that do get longer soon move the
# median. What has no length (everybody's loss was not finite) says nothing about the next, and is not remembered: else
# a limit of 0 would hold for ever.
#
# All members remember the same steps and round lengths alike, so all shorten alike. What is rounded is on the safe
# side: what is remembered is rounded down, and what must stay below the limit is rounded up.


STEP_GROWTH: Final = 4.0


class StepBound:
    """Limits aggregates to `STEP_GROWTH` times the median length of those that were applied last."""

    def __init__(self, lengths: Iterable[float] = ()) -> None:
        self._lengths = deque(lengths, maxlen=REMEMBERED_STEPS)

    @property
    def lengths(self) -> tuple[float, ...]:
        """Of the aggregates that were applied last."""
        return tuple(self._lengths)

    def shortened(self, aggregate: torch.Tensor, about: float | None = None) -> torch.Tensor:
        """What is applied of an aggregate (float32), and remembered; nothing limits the first one. About how large the
        sum of its squares is (`squares`) may be known already.
        """
        least = rounded_length(aggregate, about)
        most = least * (1.0 + LENGTH_STEP)
        limit = STEP_GROWTH * statistics.median(self._lengths) if self._lengths else most
        if least > 0.0:
            self._lengths.append(min(least, limit))
        return aggregate if most <= limit else aggregate * (limit / most)
