"""One rate, learnt from samples some of which are wrong or say little.

Theory of operation. What is kept is the mean of the middle and upper part of the last samples: a hiccup pulls some of
them down and a burst out of a buffer pushes a few up, and neither moves it. A *loaded* sample, taken while more bytes
waited all the time, tells what the line can carry, and counts whatever it says. Any other only tells that the line can
carry that much: it counts if it is about as high as the estimate or higher. If for a long time nothing comes near the
estimate, it is lowered towards the highest that was seen, with room above it, and calls for a probe (`doubtful`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

SAMPLES = 32
FROM_QUANTILE, TO_QUANTILE = 0.5, 0.9
NEAR = 0.8
"""An unloaded sample counts from this share of the estimate on."""

LOW_SAMPLES = 1200
"""How many samples in a row must be low before they lower the estimate without being loaded."""

ROOM = 1.5
FASTEST_RATE = 1e15


class Estimate:
    """A rate in bytes per second."""

    def __init__(self) -> None:
        self.doubtful = False
        """Whether the samples have been lower than the estimate for long."""
        self.newest_s = -math.inf
        """Loop time of the last sample that was not low."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._sorted: list[float] = []  # their rates
        self._low_count, self._low_peak = 0, 0.0
        self._value: float | None = None

    @property
    def samples(self) -> int:
        """How many samples the estimate rests on."""
        return len(self._samples)

    @property
    def value(self) -> float | None:
        """The estimate; None before the first sample."""
        return self._value

    def add(self, rate: float, when: float, *, loaded: bool) -> None:
        """Take in one sample, taken at loop time `when`; what is no positive number is ignored."""
        if not (math.isfinite(rate) and rate > 0.0):
            return
        rate = min(rate, FASTEST_RATE)
        is_low = self._value is not None and rate < NEAR * self._value
        if is_low and not loaded:
            self._note_low(rate, when)
            return
        self._low_count, self._low_peak = 0, 0.0
        if len(self._samples) == SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._samples[0][0])]
        self._samples.append((rate, when))
        insort(self._sorted, rate)
        self.newest_s = when
        self._evaluate()

    def keep_since(self, when: float) -> None:
        """Forget what is older than loop time `when`, if anything is newer; a doubt is settled."""
        newer = [sample for sample in self._samples if sample[1] >= when]
        if newer:
            self._keep(newer)
        self.doubtful = False

    def forget_since(self, when: float) -> None:
        """Forget what was learnt since loop time `when`; nothing is known if there was nothing before."""
        self._keep([sample for sample in self._samples if sample[1] < when])
        self.newest_s = self._samples[-1][1] if self._samples else -math.inf

    def _keep(self, samples: list[tuple[float, float]]) -> None:
        self._samples.clear()
        self._samples.extend(samples)
        self._sorted = sorted(rate for rate, _ in samples)
        self._evaluate()

    def _note_low(self, rate: float, when: float) -> None:
        self._low_count += 1
        self._low_peak = max(self._low_peak, rate)
        if self._low_count >= LOW_SAMPLES:
            self._keep([(min(ROOM * self._low_peak, self._value or math.inf), when)])
            self._low_count, self._low_peak, self.doubtful = 0, 0.0, True

    def _evaluate(self) -> None:
        rates = self._sorted
        if not rates:
            self._value = None
            return
        first = int(FROM_QUANTILE * len(rates))
        middle = rates[first : max(first + 1, int(TO_QUANTILE * len(rates)))]
        self._value = math.fsum(middle) / len(middle)
