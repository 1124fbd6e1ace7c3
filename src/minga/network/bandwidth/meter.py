"""What a peer's line carries, learnt from the bulk traffic that flows anyway.

Theory of operation. Every transfer tells its spans (`minga.network.bandwidth.delivery_reports`): so many bytes in
such a time, as the receiver saw them. They are laid into slots of `SLOT_S` seconds, for each direction and each other
peer; a slot is evaluated once `SETTLE_S` have passed, when all receipts that concern it are there. A slot that a
transfer fills gives a sample of that path (`minga.network.bandwidth.estimate`), and all bytes of some slots in a row,
a *stretch*, one of the direction.

A slot is *loaded* as a whole if more bytes waited for two peers whose own lines had room (for one if there never was
more than one, or if it gets about what the line is known to carry): one slow receiver alone does not show what the
line can do.

A path is the limit of what goes over it, and *slow*, if bytes waited for it while the lines at both its ends had room
(`share`). While one of them is full nothing is learnt about the path: the connections that compete for a line get very
different parts of it, for as long as they last.

Slots in a row make an *exercise*, such as a round. What a path moved in one, divided by the time that the whole
exercise took, is no peak: it cannot be made higher by serving one peer after the other. Others judge by it what this
peer says about itself, and this peer what they say (`minga.averaging.planning.believed_rates`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from minga.network.bandwidth.delivery_reports import BulkUse, Span
from minga.network.bandwidth.estimate import NEAR, Estimate
from minga.network.bandwidth.time_buckets import (
    BUSY_S,
    MEMORY_BYTES,
    SLOT_S,
    BucketRun,
    BusyPeriod,
    Flow,
    TimeBucket,
    TimeWindow,
    Use,
)
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId

SETTLE_S = 6.0
"""Receipts queue behind what their sender has in its buffers: over a slow line that takes seconds."""

LONGEST_SPAN_S = 30.0
"""Of a longer span only the end counts: the slots before are settled."""

SHORTEST_S = 1e-3
"""Bytes that came at once, out of a buffer, are taken to have come in this time."""

BREADTH_MEMORY_S = 600.0
EXERCISES = 4
"""Of so many exercises the one in which a path moved most counts."""

SLOW_SHARE = 0.5
"""A path that gets less than this share of what a line could have moved is itself the limit of what goes over it."""

FEWEST_SHARES = 10
"""A second in all: what a transfer ends with may be reported late, or never, so that the line seems to have room."""

SURPASSED = 2.0
"""What showed that a path is slow is void once it carries so many times as much."""

IDLE_SHARE = 0.5
"""A line that moves less than this share of what it can has room."""

MAX_PATHS = 256


@dataclass
class Path:
    """One direction of the way to one peer.

    `rate` is what it can carry, `shares` that rate in proportion to what the line could have moved at that time if the
    path had let it, and `means` the bytes per second that it moved in whole exercises.
    """

    rate: Estimate = field(default_factory=Estimate)
    shares: Estimate = field(default_factory=Estimate)
    means: deque[float] = field(default_factory=lambda: deque(maxlen=EXERCISES))

    @property
    def share(self) -> float | None:
        """The share as far as enough has shown it; None before."""
        return self.shares.value if self.shares.samples >= FEWEST_SHARES else None

    @property
    def mean(self) -> float | None:
        """The highest of the means; None before the first."""
        return max(self.means, default=None)


class DirectionMeter:
    """One direction of a peer's line."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = Estimate(MEMORY_BYTES / SLOT_S)
        self.changes = 0
        """How many slots were evaluated."""
        self._clock = clock
        self._paths: BoundedDict[PeerId, Path] = BoundedDict(MAX_PATHS)
        self._slots: dict[int, TimeBucket] = {}
        self._exercise: BusyPeriod | None = None
        self._settled = self._horizon = -math.inf
        self._breadth, self._broad_s = 0, -math.inf
        self._run = BucketRun()

    def add_total(self, span: Span, use: BulkUse) -> None:
        """Count what was moved to or from anybody, by spans that may be shorter than those given to `add`."""
        for number, seconds in self._cover(span) if use is not BulkUse.PROBED else ():
            self._slot(number).total += span.size * seconds / max(span.end_s - span.begin_s, SHORTEST_S)

    def add(self, peer: PeerId, span: Span, use: BulkUse) -> None:
        """Count what was moved to or from `peer`; does not count for the total."""
        for number, seconds in self._cover(span):
            flow = self._slot(number).setdefault((peer, use), Flow())
            flow.size += span.size * seconds / max(span.end_s - span.begin_s, SHORTEST_S)
            flow.moving_s += seconds
            flow.open_s += seconds if span.loaded and span.room else 0.0

    def note(self, peer: PeerId, size: int) -> None:
        """Count bytes that were moved lately, too few to tell how fast."""
        number = math.floor(self._clock() / SLOT_S)
        if size and number > self._settled:
            self._slot(number).setdefault((peer, BulkUse.WORK), Flow()).untimed += size

    def settle(self, *, all_of_them: bool = False) -> None:
        """Evaluate the slots that are complete, or (after an exercise) all that there are."""
        horizon = math.floor((self._clock() - SETTLE_S) / SLOT_S)
        if horizon == self._horizon and not all_of_them:
            return
        self._horizon = horizon
        while self._slots and ((number := min(self._slots)) < horizon or all_of_them):
            slot = self._slots.pop(number)
            self._evaluate(slot, number)
            self._note_exercise(number, slot)
            self._settled = number
            self.changes += 1
        if all_of_them:
            self._end_run()
        if self._exercise is not None and self._exercise.is_over(horizon):
            self._end_exercise(self._exercise)

    def paths(self) -> list[tuple[PeerId, Path]]:
        """The paths that are known, those that were used last first."""
        self.settle()
        return list(reversed(self._paths.items()))

    def keep_since(self, when: float) -> None:
        """Forget what is older than loop time `when` wherever something newer is known."""
        self.settle(all_of_them=True)
        for estimate in self._estimates():
            estimate.keep_since(when)

    def forget_since(self, when: float) -> None:
        """Forget what was learnt since loop time `when`."""
        self.settle(all_of_them=True)
        for estimate in self._estimates():
            estimate.forget_since(when)

    def _estimates(self) -> list[Estimate]:
        return [self.total, *(e for path in self._paths.values() for e in (path.rate, path.shares))]

    def _slot(self, number: int) -> TimeBucket:
        return self._slots.setdefault(number, TimeBucket())

    def _cover(self, span: Span) -> list[tuple[int, float]]:
        """The open slots that a span touches, and for how many seconds; none for one that cannot be."""
        self.settle()
        begin_s, end_s = span.begin_s, span.end_s
        if not (math.isfinite(begin_s) and begin_s <= end_s <= self._clock() + SLOT_S):
            return []
        begin_s = max(min(begin_s, end_s - SHORTEST_S), end_s - LONGEST_SPAN_S)
        slots = range(math.floor(begin_s / SLOT_S), math.floor(end_s / SLOT_S) + 1)
        cover = [(n, min(end_s, (n + 1) * SLOT_S) - max(begin_s, n * SLOT_S)) for n in slots if n > self._settled]
        return [(number, seconds) for number, seconds in cover if seconds > 0.0]

    def _evaluate(self, slot: TimeBucket, number: int) -> None:
        when = (number + 1) * SLOT_S
        spare = self._evaluate_total(slot, number, when)
        for (peer, use), flow in slot.items():
            if flow.fills:
                self._evaluate_path(peer, flow, spare if use is BulkUse.WORK else 0.0, when)

    def _evaluate_total(self, slot: TimeBucket, number: int, when: float) -> float:
        """Take in what all moved together; returns the bytes that could have been moved besides, 0 if unknown."""
        own = {key: flow for key, flow in slot.items() if key[1] is not BulkUse.PROBED and flow.fills}
        moving = len(own)
        if not moving:
            return 0.0
        if moving >= self._breadth or when - self._broad_s > BREADTH_MEMORY_S:
            self._breadth, self._broad_s = moving, when
        rate, known = slot.total / SLOT_S, self.total.value
        if known is not None and moving < self._breadth and rate < IDLE_SHARE * known:
            return (known - rate) * SLOT_S
        waiting = sum(flow.is_open and not self._is_slow(peer) for (peer, _), flow in own.items())
        if waiting:
            use = Use.SEVERAL_WAIT if waiting >= min(2, self._breadth) else Use.ONE_WAITS
        else:
            use = Use.BROAD if 2 * moving >= self._breadth else Use.LITTLE
        for stretch in self._run.add(number, slot.total, use):
            self._take_in(stretch)
        return 0.0

    def _end_run(self) -> None:
        for stretch in self._run.end():
            self._take_in(stretch)

    def _take_in(self, stretch: TimeWindow) -> None:
        known = self.total.value
        loaded = stretch.use is Use.SEVERAL_WAIT
        if known is not None and stretch.use is Use.ONE_WAITS:  # rather the line than a path that is as fast
            loaded = stretch.rate >= NEAR * known
        if loaded or stretch.use is Use.BROAD or known is None or stretch.rate > known:
            shows = stretch.use >= Use.BROAD
            self.total.add(stretch.rate, stretch.end_s, loaded=loaded, count=stretch.slots, shows=shows)

    def _evaluate_path(self, peer: PeerId, flow: Flow, spare: float, when: float) -> None:
        """`spare`: bytes that the line could have moved besides in this slot."""
        path, rate = self._path(peer), flow.size / SLOT_S
        share = flow.size / (flow.size + spare)
        shows = spare > 0.0 and flow.is_open
        path.rate.add(rate, when, loaded=shows and share < SLOW_SHARE)
        if shows:
            path.shares.add(share, when, loaded=True)
        elif (path.rate.value or 0.0) > SURPASSED * (path.shares.value or math.inf) * (self.total.value or math.inf):
            path.shares = Estimate()

    def _is_slow(self, peer: PeerId) -> bool:
        """Whether the path is itself the limit of what goes over it, so that it shows nothing about the line."""
        share = self._paths[peer].share if peer in self._paths else None
        return share is not None and share < SLOW_SHARE

    def _path(self, peer: PeerId) -> Path:
        path = self._paths.get(peer) or Path()
        self._paths[peer] = path  # used last: to the end
        return path

    def _note_exercise(self, number: int, slot: TimeBucket) -> None:
        if not any(use is BulkUse.WORK for _, use in slot):
            return
        if self._exercise is not None and self._exercise.is_over(number):
            self._end_exercise(self._exercise)
        self._exercise = self._exercise or BusyPeriod(number)
        self._exercise.add(number, slot)

    def _end_exercise(self, exercise: BusyPeriod) -> None:
        self._exercise = None
        self._end_run()
        for peer, mean in exercise.means().items():
            self._path(peer).means.append(mean)


class LinkMeter:
    """Both directions of a peer's line; `clock` is the loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.up, self.down = DirectionMeter(clock), DirectionMeter(clock)
        self._clock = clock
        self._worked_s = -math.inf

    @property
    def is_busy(self) -> bool:
        """Whether bulk bytes moved lately that are no probe's."""
        return self._clock() - self._worked_s < BUSY_S

    def note_work(self) -> None:
        """Bulk bytes that are no probe's are moving."""
        self._worked_s = self._clock()
