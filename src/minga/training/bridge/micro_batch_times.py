"""How long this peer's micro-batches take, by which its leader plans.

Theory of operation. The thread tells when a micro-batch ends, so all that the program does between two of them counts
as time of the second: to wait for data, to compile the model before the first one, to evaluate without saying so. A
time far beyond the usual one therefore counts as what is just not far beyond, unless the one before was as long. And if
one of the first micro-batches is far quicker than those before it, these say nothing: a model may be compiled for the
first, and again for the second, which has another shape.

A peer that is thought to be too slow for the steps of the run is told to stop at 0 samples, and so would never be seen
to be quick again. While a peer that really is slow computes in vain, it falls behind, and others may wait for it for
some seconds. So each computes its first `FIRST` micro-batches, and later one now and then only if it was quick enough
before: then something else keeps the machine busy, and will be over. Each try that is no better doubles the pause to
the next.
"""

from __future__ import annotations

import math

from minga.averaging.clocking.sample_quota import AWAY_S

# ---- The moving average of how long something took lately.


SPEED_EMA = 0.1
"""Weight of the newest micro-batch in the estimate of seconds per sample."""


class MovingAverage:
    """Exponential moving average with bias correction: the first value counts fully."""

    def __init__(self) -> None:
        self._average = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        """Count another value."""
        self._average += SPEED_EMA * (value - self._average)
        self._weight += SPEED_EMA * (1.0 - self._weight)

    @property
    def value(self) -> float:
        """The average; 0 before the first value."""
        return self._average / self._weight if self._weight else 0.0


# ---- How long micro-batches take.


FAR_LONGER = 3.0
"""By this factor, and `AWAY_S` seconds, a micro-batch takes longer than usual if the thread did something else."""
FIRST = 3
"""Micro-batches after which a peer knows how long its own take."""
LEAST_PAUSE_S, LEAST_PAUSE = 30.0, 10.0
"""Seconds, and usual micro-batches, from one that was too slow to the next try."""
MOST_DOUBLINGS = 12
SHORTEST_S = 1e-6
"""A clock that ticks rarely shows none for a short micro-batch."""


class MicroBatchTimes:
    """Seconds that the micro-batches of one training thread take. Used under the lock of its port."""

    def __init__(self) -> None:
        self._each, self._of_a_sample = MovingAverage(), MovingAverage()
        self._count, self._was_long, self._ended_s = 0, False, math.inf
        self._least_each_s, self._tries, self._is_try = math.inf, 0, False

    @property
    def each_s(self) -> float:
        """Seconds of a micro-batch as a rule; 0 before the first."""
        return self._each.value

    @property
    def samples_per_s(self) -> float:
        """Samples in a second while it computes; 0 before the first micro-batch."""
        return 1.0 / self._of_a_sample.value if self._of_a_sample.value else 0.0

    def add(self, samples: int, seconds: float, now_s: float) -> None:
        """A micro-batch of so many samples, more than 0, ended at `now_s`, so many seconds after the one before."""
        most_s, seconds = FAR_LONGER * self.each_s + AWAY_S, max(seconds, SHORTEST_S)
        if (self._is_new or self._is_try) and self.each_s > FAR_LONGER * seconds:
            self._each, self._of_a_sample = MovingAverage(), MovingAverage()
        is_long = self._count > 0 and seconds > most_s
        if is_long and not self._was_long:
            seconds = most_s
        self._count, self._was_long, self._ended_s = self._count + 1, is_long, now_s
        self._tries, self._is_try = self._tries + 1 if self._is_try else 0, False
        self._each.add(seconds)
        self._of_a_sample.add(seconds / samples)
        self._least_each_s = min(self._least_each_s, self.each_s)

    def begin_try(self) -> None:
        """The next micro-batch is computed although the thread was told to compute nothing."""
        self._is_try = True

    def needs_another(self, now_s: float, step_s: float) -> bool:
        """Whether a thread that was told to compute nothing is to compute one micro-batch, at `now_s`.

        Not where one fits into the `step_s` seconds of a step: then others were enough without this peer.
        """
        if not self._count or self.each_s <= step_s:
            return False
        pause_s = max(LEAST_PAUSE_S, LEAST_PAUSE * self.each_s) * 2 ** min(self._tries, MOST_DOUBLINGS)
        is_time = now_s - self._ended_s >= (AWAY_S if self._is_new else pause_s)
        return is_time and (self._is_new or self._least_each_s <= step_s)

    @property
    def _is_new(self) -> bool:
        return 0 < self._count < FIRST
