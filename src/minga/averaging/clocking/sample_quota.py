"""How many samples each member of a group should stop at, so that together they have the target batch size B.

Theory of operation. Samples come in micro-batches: member i's next one is there in `next_s` seconds, and each further
one `micro_batch_s` later. Taken in the order of time, those up to the moment T at which the sum reaches B are the ones
that make the step as short as it can be, and what each member has by then is its *limit*. Members stop there by
themselves, so it does not matter how late an order to stop would reach them: the realised batch is the sum of the
limits, which is B and, but for what follows, less than one micro-batch more.

A member that cannot finish its first micro-batch by T has nothing to give to this step without making all others wait.
At T some of several micro-batches that end at once may be too many; those are left out whose members have given others,
and a member's only one where the batch would exceed B by more than `SURPLUS` otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

SURPLUS: Final = 0.1
"""By what fraction of B the batch may be larger so that nobody's only micro-batch is in vain."""

HALVINGS: Final = 40

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MemberPace:
    """How one member goes on: it has `samples`, and `micro_batch` more (0: no more come) each `micro_batch_s` seconds,
    the first of them in `next_s`; as things stand it stops at `limit` (None: it does not).
    """

    samples: int
    micro_batch: int = 0
    next_s: float = 0.0
    micro_batch_s: float = 0.0
    limit: int | None = None


@dataclass(frozen=True)
class SampleQuotas:
    """The samples at which each member should stop, and in how many seconds all of them are there (inf: never)."""

    samples: tuple[int, ...]
    seconds: float


def share_out(target: int, paces: Sequence[MemberPace]) -> SampleQuotas:
    """The limits by which `target` samples are there as soon as possible, whatever limits there are at present."""
    crowd = _Crowd(paces, np.full(len(paces), math.inf))
    counts, seconds = crowd.until(target)
    order = sorted(range(len(paces)), key=lambda i: (-crowd.last_s(i, int(counts[i])), i))
    surplus = int((crowd.samples + crowd.sizes * counts).sum()) - target
    for keeps_one, allowed in ((True, 0), (False, math.floor(SURPLUS * target))):
        for index in order:
            size = int(crowd.sizes[index])
            spare = counts[index] - (1 if keeps_one and not crowd.samples[index] else 0)
            fewer = min(spare, surplus // size) if size and surplus > allowed else 0
            if fewer > 0:
                counts[index] -= fewer
                surplus -= size * int(fewer)
    return SampleQuotas(tuple(int(x) for x in crowd.samples + crowd.sizes * counts), seconds)


def seconds_as_is(target: int, paces: Sequence[MemberPace]) -> float:
    """In how many seconds `target` samples are there if all stop at their present limits; inf if they never are."""
    left = [math.inf if p.limit is None else math.ceil((p.limit - p.samples) / (p.micro_batch or 1)) for p in paces]
    return _Crowd(paces, np.maximum(0.0, np.array(left))).until(target)[1]


class _Crowd:
    """Members as arrays; `most` micro-batches of each are still to come."""

    def __init__(self, paces: Sequence[MemberPace], most: Counts) -> None:
        self.samples = np.array([pace.samples for pace in paces], dtype=np.float64)
        self.sizes = np.array([pace.micro_batch for pace in paces], dtype=np.float64)
        self._next_s = np.array([pace.next_s for pace in paces], dtype=np.float64)
        self._each_s = np.array([max(pace.micro_batch_s, 1e-6) for pace in paces], dtype=np.float64)
        self._most = np.where(self.sizes > 0, most, 0.0)

    def counts_at(self, seconds: float) -> Counts:
        """Micro-batches that each member finishes in so many seconds."""
        done: Counts = np.floor((seconds - self._next_s) / self._each_s) + 1.0
        return np.minimum(np.maximum(done, 0.0), self._most)  # `clip` takes three times as long with few members

    def until(self, target: int) -> tuple[Counts, float]:
        """What each member finishes until there are `target` samples, and the seconds until then; or all, and inf."""
        lacking = target - self.samples.sum()
        if lacking <= 0:
            return np.zeros_like(self.samples), 0.0
        if not (self.sizes * self._most).sum() >= lacking:
            return np.where(np.isinf(self._most), 0.0, self._most), math.inf
        able = self._most > 0
        early, late = 0.0, float(self._next_s[able].max())
        while (self.sizes * self.counts_at(late)).sum() < lacking:
            early, late = late, 2.0 * late + float(self._each_s[able].max())
        before, counts = self.counts_at(early), self.counts_at(late)
        if (self.sizes * before).sum() >= lacking:
            return before, early
        for _ in range(HALVINGS):
            if (counts - before).sum() <= 1.0:  # it is this micro-batch that ends the step
                index = int((counts - before).argmax())
                return counts, self.last_s(index, int(counts[index]))
            middle = 0.5 * (early + late)
            at_middle = self.counts_at(middle)
            if (self.sizes * at_middle).sum() >= lacking:
                late, counts = middle, at_middle
            else:
                early, before = middle, at_middle
        return counts, late

    def last_s(self, index: int, count: int) -> float:
        """When a member finishes the last of `count` micro-batches; -inf without any."""
        if count <= 0:
            return -math.inf
        return float(self._next_s[index] + (count - 1) * self._each_s[index])
