"""How long this peer's micro-batches take, by which its leader plans.

Theory of operation. The thread tells when a micro-batch ends, so all that the program does between two of them counts
as time of the second: to wait for data, to compile the model before the first one, to evaluate without saying so. A
time that is far beyond the usual one is therefore no time of a micro-batch, unless the next one is as long: then this
machine is slower now. What the first one took is not known to be usual, until the second one shows.

A peer that is thought to be too slow for the steps of the run is told to stop at 0 samples, and would never learn that
it is quicker than that. So it tries again now and then: soon after its first micro-batch, else after a pause that is
long compared to what a micro-batch is thought to take, since one that still is too slow falls behind meanwhile.
"""

from __future__ import annotations

import math

from minga.averaging.clocking.registration import AWAY_S
from minga.training.bridge.moving_average import MovingAverage

FAR_LONGER = 3.0
"""By this factor, and `AWAY_S` seconds, a micro-batch takes longer than usual if the thread did something else."""
TRY_AGAIN = 30.0
"""A peer that is told to compute nothing does so for this many micro-batches' time."""


class MicroBatchTimes:
    """Seconds that the micro-batches of one training thread take. Used under the lock of its port."""

    def __init__(self) -> None:
        self._begin_anew()
        self._was_away, self._ended_s = False, math.inf

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
        self._ended_s = now_s
        is_away = self._count > 0 and _is_far_longer(seconds, self.each_s)
        if is_away and not self._was_away:
            self._was_away = True
            return
        if is_away or (self._count == 1 and _is_far_longer(self.each_s, seconds)):
            self._begin_anew()
        self._was_away = False
        self._count += 1
        self._each.add(seconds)
        self._of_a_sample.add(seconds / samples)

    def is_time_to_try(self, now_s: float) -> bool:
        """Whether a thread that was told to compute nothing should compute one micro-batch, to see how long it takes.

        Never before it computed a first one.
        """
        pause_s = AWAY_S if self._count == 1 else TRY_AGAIN * self.each_s
        return now_s - self._ended_s >= pause_s

    def _begin_anew(self) -> None:
        self._each, self._of_a_sample, self._count = MovingAverage(), MovingAverage(), 0


def _is_far_longer(seconds: float, usual_s: float) -> bool:
    return seconds > FAR_LONGER * usual_s + AWAY_S
