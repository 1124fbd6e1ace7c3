"""One rate, learnt from samples some of which are wrong or say little.

Theory of operation. The estimate is the mean of the middle and upper part of the last samples. A hiccup pulls some
samples down and a burst out of a buffer pushes a few up, and neither moves this mean. A *loaded* sample, taken while
more bytes waited all the time, shows the rate of the link, and always counts. Any other sample only shows that the link
carries at least as much: it counts if it is about as high as the estimate or higher. If no sample comes near the
estimate for a long time, the estimate is lowered towards the highest sample, with room above it, and calls for a probe
(`doubtful`). If clearly more was moved for seconds than the estimate says, it is void, and calls for a probe, too.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque

BUCKETS = 32
"""The number of buckets whose samples are kept; more where these moved little."""

MOST_SAMPLES = 64
FROM_TENTH, TO_TENTH = 4, 8
NEAR = 0.8
"""An unloaded sample counts from this share of the estimate on."""

LOW_BUCKETS = 1200
"""How many buckets in a row must be low before they lower the estimate without being loaded."""

ROOM = 1.5
FASTEST_RATE = 1e15


class Estimate:
    """A rate in bytes per second. The kept samples moved at least `amount`, in bytes per second times buckets."""

    def __init__(self, amount: float = 0.0) -> None:
        self.doubtful = False
        """Whether the samples have been lower than the estimate for long."""
        self.newest_s = -math.inf
        """Loop time of the last sample that was not low."""
        self._samples: deque[tuple[float, int, bool, float]] = deque()  # rate, buckets, shows, time
        self._sorted: list[tuple[float, int]] = []  # their rates and buckets
        self._least_amount = amount
        self._buckets, self._amount = 0, 0.0  # of all samples
        self._low_count, self._low_peak = 0, 0.0
        self._value: float | None = None

    @property
    def samples(self) -> int:
        """How many samples the estimate rests on."""
        return len(self._samples)

    @property
    def is_shown(self) -> bool:
        """Whether at least one sample shows the rate of the link; otherwise the value is a lower bound."""
        return any(sample[2] for sample in self._samples)

    @property
    def value(self) -> float | None:
        """The estimate; None before the first sample."""
        return self._value

    def add(self, rate: float, when: float, *, loaded: bool, count: int = 1, shows: bool = False) -> None:
        """Take in a sample of `count` buckets, taken at loop time `when`; a rate that is no positive number is ignored.

        Loaded or not, the sample may be one that `shows` the rate of the link.
        """
        if not (math.isfinite(rate) and rate > 0.0):
            return
        rate = min(rate, FASTEST_RATE)
        is_low = self._value is not None and rate < NEAR * self._value
        if is_low and not loaded:
            self._note_low(rate, when, count)
            return
        self._low_count, self._low_peak = 0, 0.0
        self._samples.append((rate, count, loaded or shows, when))
        insort(self._sorted, (rate, count))
        self._buckets, self._amount = self._buckets + count, self._amount + rate * count
        self._forget_oldest()
        self.newest_s = when
        self._evaluate()

    def keep_since(self, when: float) -> None:
        """Forget what is older than loop time `when`, if anything is newer; a doubt is settled."""
        if self._samples and self._samples[0][-1] < when <= self._samples[-1][-1]:  # samples come in order of time
            self._keep([sample for sample in self._samples if sample[-1] >= when])
        self.doubtful = False

    def surpass(self, rate: float, when: float) -> None:
        """As much moved for long: if that is clearly more than the estimate, what was learnt before loop time `when` is
        void. The link carries at least that rate, and a probe should tell how much.
        """
        if self._value is not None and rate > ROOM * self._value:
            self._keep([(min(rate, FASTEST_RATE), 1, False, when)])
            self._low_count, self._low_peak, self.doubtful, self.newest_s = 0, 0.0, True, when

    def forget_since(self, when: float) -> None:
        """Forget what was learnt since loop time `when`; nothing is known if there was nothing before."""
        if self._samples and self._samples[-1][-1] >= when:
            self._keep([sample for sample in self._samples if sample[-1] < when])
        self.newest_s = self._samples[-1][-1] if self._samples else -math.inf

    def _keep(self, samples: list[tuple[float, int, bool, float]]) -> None:
        self._samples.clear()
        self._samples.extend(samples)
        self._sorted = sorted(sample[:2] for sample in samples)
        self._buckets, self._amount = sum(s[1] for s in samples), sum(s[0] * s[1] for s in samples)
        self._evaluate()

    def _note_low(self, rate: float, when: float, count: int) -> None:
        self._low_count += count
        self._low_peak = max(self._low_peak, rate)
        if self._low_count >= LOW_BUCKETS:
            self._keep([(min(ROOM * self._low_peak, self._value or math.inf), 1, True, when)])
            self._low_count, self._low_peak, self.doubtful = 0, 0.0, True

    def _forget_oldest(self) -> None:
        """Keep no more than the newest samples that make up enough buckets and amount."""
        samples = self._samples
        while len(samples) > 1:
            rate, count, *_ = samples[0]
            enough = self._buckets - count >= BUCKETS and self._amount - rate * count >= self._least_amount
            if not enough and len(samples) <= MOST_SAMPLES:
                return
            self._sorted.remove(samples.popleft()[:2])
            self._buckets, self._amount = self._buckets - count, self._amount - rate * count

    def _evaluate(self) -> None:
        buckets = self._buckets
        first, last = FROM_TENTH * buckets, TO_TENTH * buckets
        before, total = 0, 0.0
        for rate, count in self._sorted:
            after = before + 10 * count
            if after > first:
                total += rate * (min(after, last) - max(before, first))
                if after >= last:
                    break
            before = after
        self._value = total / (last - first) if buckets else None
