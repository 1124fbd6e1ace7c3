"""When a step is full: the leader's rule of `minga.averaging._gathering`, worked out for peers of known speed.

All begin the step at the same time, and a micro-batch of m samples takes d seconds. The leader asks all to park as soon
as those that will then be complete are enough: the finished ones, and those under way that end within the grace period
max(0.25 s, 15 % of the step). It waits for these, and if others are in the middle of longer ones half as long again.
What was not complete by then is lost to the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minga.averaging._gathering import GRACE_SHARE, MIN_GRACE_S

_SLACK_S = 0.1
_TINY = 1e-9


@dataclass(frozen=True)
class Pace:
    """`count` equal peers that compute `micro_batch` samples in `micro_batch_s` seconds."""

    count: int
    micro_batch: int
    micro_batch_s: float

    @property
    def samples_per_s(self) -> float:
        """Of all of them together."""
        return self.count * self.micro_batch / self.micro_batch_s


@dataclass(frozen=True)
class Filling:
    """Seconds from the beginning of a step until all are parked, and the samples that each pace has by then."""

    seconds: float
    samples: tuple[int, ...]


def fill(paces: Sequence[Pace], batch: float) -> Filling:
    """How a step of at least `batch` samples fills up; forever if nobody computes."""
    speed = sum(pace.samples_per_s for pace in paces)
    if not speed > 0.0:
        return Filling(math.inf, (0,) * len(paces))
    grace_s = max(MIN_GRACE_S, GRACE_SHARE * batch / speed)
    called_s = _called_s(paces, batch, grace_s, speed)
    remaining = [_remaining_s(pace, called_s) for pace in paces if pace.count]
    in_time = [left for left in remaining if left <= grace_s + _TINY]
    limit_s = _SLACK_S + 1.5 * max(in_time, default=0.0)
    parked_s = limit_s if any(left > limit_s for left in remaining) else max(remaining)
    end_s = called_s + parked_s
    samples = tuple(pace.count * pace.micro_batch * _done(pace, end_s) for pace in paces)
    return Filling(end_s, samples)


def _done(pace: Pace, now_s: float) -> int:
    """Micro-batches that each of them has finished."""
    return math.floor(now_s / pace.micro_batch_s + _TINY)


def _remaining_s(pace: Pace, now_s: float) -> float:
    """Seconds until the end of the micro-batch under way; where one has just ended the next has begun."""
    return (_done(pace, now_s) + 1) * pace.micro_batch_s - now_s


def _called_s(paces: Sequence[Pace], batch: float, grace_s: float, speed: float) -> float:
    """The earliest moment at which the samples that will be complete are enough: they only grow, so it is bracketed."""

    def complete(now_s: float) -> int:
        return sum(
            pace.count * pace.micro_batch * (_done(pace, now_s) + (_remaining_s(pace, now_s) <= grace_s + _TINY))
            for pace in paces
        )

    low_s, high_s = 0.0, batch / speed + 2.0 * max(pace.micro_batch_s for pace in paces)
    if complete(low_s) >= batch:
        return low_s
    for _ in range(60):
        middle_s = 0.5 * (low_s + high_s)
        if complete(middle_s) >= batch:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s
