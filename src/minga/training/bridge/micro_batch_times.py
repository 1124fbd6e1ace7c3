"""How long this peer's micro-batches take, by which its leader plans.

Theory of operation. The thread tells when a micro-batch ends, so all that the program does between two of them counts
as time of the second: to wait for data, to compile the model before the first one, to evaluate without saying so. A
time far beyond the usual one therefore counts as what is just not far beyond, unless the one before was as long. And if
the second micro-batch of all is far quicker than the first, the first says nothing.

A peer that is thought to be too slow for the steps of the run is told to stop at 0 samples, and would never come to its
second micro-batch. So it computes that one in any case. It does so once only: while a peer that really is slow computes
in vain, it falls behind, and others may wait for it for some seconds.
"""

from __future__ import annotations

import math

from minga.averaging.clocking.registration import AWAY_S
from minga.training.bridge.moving_average import MovingAverage

FAR_LONGER = 3.0
"""By this factor, and `AWAY_S` seconds, a micro-batch takes longer than usual if the thread did something else."""


class MicroBatchTimes:
    """Seconds that the micro-batches of one training thread take. Used under the lock of its port."""

    def __init__(self) -> None:
        self._each, self._of_a_sample = MovingAverage(), MovingAverage()
        self._count, self._was_long, self._ended_s = 0, False, math.inf

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
        most_s = FAR_LONGER * self.each_s + AWAY_S
        if self._count == 1 and self.each_s > FAR_LONGER * seconds:
            self._each, self._of_a_sample = MovingAverage(), MovingAverage()
        is_long = self._count > 0 and seconds > most_s
        if is_long and not self._was_long:
            seconds = most_s
        self._count, self._was_long, self._ended_s = self._count + 1, is_long, now_s
        self._each.add(seconds)
        self._of_a_sample.add(seconds / samples)

    def needs_second(self, now_s: float, step_s: float) -> bool:
        """Whether a thread that was told to compute nothing is to compute its second micro-batch, at `now_s`.

        Not where the first one fits into the `step_s` seconds of a step: then others were enough without this peer.
        """
        return self._count == 1 and self.each_s > step_s and now_s - self._ended_s >= AWAY_S
