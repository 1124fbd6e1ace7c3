"""The rates of a peer's access link, measured from the bulk traffic that flows anyway.

Theory of operation. Every transfer reports its spans (`minga.network.bandwidth.delivery_reports`): so many bytes in
such a time, as the receiver saw them. They are laid into buckets of `BUCKET_S` seconds, for each direction and each
other peer. A bucket is evaluated once `SETTLE_S` have passed, when all delivery reports that concern it have arrived. A
bucket that a transfer fills gives a sample of that path (`minga.network.bandwidth.estimate`). All bytes of some buckets
in a row, a *window*, give a sample of the direction.

A bucket is *loaded* as a whole if more bytes waited for two peers whose own links had room. One such peer is enough if
there never was more than one, or if it gets about the known rate of the link. Otherwise one slow receiver alone does
not show what the link can carry. Nor do peers that use up a cap of their own (`caps`).

Transfers that are too short to fill a bucket give no sample: of a fast link, all rounds may be so. But whatever came,
however it was spread, the link carries at least the mean of `LONG_S` seconds. If that is clearly more than the known
rate, which may be that of a slow peer that is gone, it takes its place.

A path is the limit of its traffic, and *slow*, if bytes waited for it while the links at both its ends had room
(`share`). While one of them is full nothing is learnt about the path: connections that compete for a link get very
different shares of it, for as long as they last.

Buckets in a row make a *busy period*, such as a round. The bytes of a path in a busy period, divided by its whole
duration, are no peak: serving one peer after the other cannot raise this mean. Other peers check this peer's claims by
it, and this peer checks theirs (`minga.averaging.planning.believed_rates`).
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minga.network.bandwidth.delivery_reports import BulkUse, Span
from minga.network.bandwidth.estimate import NEAR, Estimate
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId

# ---- Buckets of time, and the bytes moved in them: alone, in a window of a few, or in a whole busy period.


BUCKET_S = 0.1
FILLED = 0.9
"""The share of a bucket's time for which a transfer has to move bytes to fill it."""

FEWEST_BUCKETS, RUN_BUCKETS, MOST_BUCKETS = 3, 5, 30
FEWEST_BYTES, RUN_BYTES = 1 << 18, 1 << 20
MEMORY_BYTES = 8 << 20
"""The rate of a link comes from the last 3 seconds of work, or from the last work that moved this many bytes."""

BUSY_S = 0.5
"""Seconds of silence that end a busy period."""

LONGEST_BUSY_PERIOD_S = 30.0


@dataclass
class Flow:
    """What one peer moved in a bucket. `size` are bytes; `moving_s` seconds of moving, and `open_s` those that were
    loaded with room on the other side. `untimed` are further bytes whose time is not known.
    """

    size: float = 0.0
    untimed: float = 0.0
    moving_s: float = 0.0
    open_s: float = 0.0

    @property
    def fills(self) -> bool:
        """Whether bytes moved nearly all the time."""
        return self.moving_s >= FILLED * BUCKET_S and self.size > 0.0

    @property
    def is_open(self) -> bool:
        """Whether further bytes waited that the other side would have taken."""
        return self.open_s >= FILLED * BUCKET_S


class TimeBucket(dict[tuple[PeerId, BulkUse], Flow]):
    """What each peer moved, and `total`, the bytes that count for the link."""

    total = 0.0


class Use(enum.IntEnum):
    """What the traffic of a bucket can show about the link, from less to more. LITTLE: only that the link carries as
    much. BROAD: the rate that half of the peers can take with which this link ever moved bytes at once. ONE_WAITS: the
    rate of the link, unless a single path is the limit. SEVERAL_WAIT: the rate of the link.
    """

    LITTLE = 0
    BROAD = 1
    ONE_WAITS = 2
    SEVERAL_WAIT = 3


class TimeWindow(NamedTuple):
    """Buckets in a row: their bytes per second, their number, the loop time at their end, and what their traffic shows,
    as the median.
    """

    rate: float
    buckets: int
    end_s: float
    use: Use


class BucketRun:
    """Buckets in a row, cut into windows of at least `RUN_BUCKETS` buckets and `RUN_BYTES` bytes, or `MOST_BUCKETS`
    buckets.

    Bytes that arrived while this process was busy count for the bucket in which it read them. Few bytes fit into a
    bucket of a slow link, so this alone would make up rates of half as much again; and overlapping windows would all be
    wrong together.
    """

    def __init__(self) -> None:
        self._size = 0.0
        self._uses: list[Use] = []
        self._next, self._waits = 0, False

    def add(self, number: int, size: float, use: Use) -> Iterator[TimeWindow]:
        """Take in the bucket of this number; yields the windows that it ends. A window has loaded buckets only, or
        none.
        """
        waits = use >= Use.ONE_WAITS
        if (number, waits) != (self._next, self._waits):
            yield from self.end()
        self._next, self._waits = number + 1, waits
        self._size += size
        self._uses.append(use)
        if len(self._uses) >= (RUN_BUCKETS if self._size >= RUN_BYTES else MOST_BUCKETS):
            yield from self.end()

    def end(self) -> Iterator[TimeWindow]:
        """No further bucket comes for now: yields the last window, if it is large enough."""
        size, uses = self._size, self._uses
        self._size, self._uses = 0.0, []
        if len(uses) >= FEWEST_BUCKETS or size >= FEWEST_BYTES:
            usual = sorted(uses)[len(uses) // 2]
            yield TimeWindow(size / (len(uses) * BUCKET_S), len(uses), self._next * BUCKET_S, usual)


class BusyPeriod:
    """Bytes by peer, from the bucket `first` to the bucket `last`, both included."""

    def __init__(self, number: int) -> None:
        self.first = self.last = number
        self.sizes: dict[PeerId, float] = {}

    def is_over(self, number: int) -> bool:
        """Whether a bucket of this number comes too late to belong to it."""
        return (number - self.last) * BUCKET_S > BUSY_S or (number - self.first) * BUCKET_S >= LONGEST_BUSY_PERIOD_S

    def add(self, number: int, bucket: TimeBucket) -> None:
        """Take in a later bucket."""
        self.last = number
        for (peer, use), flow in bucket.items():
            if use is BulkUse.WORK:
                self.sizes[peer] = self.sizes.get(peer, 0.0) + flow.size + flow.untimed

    def means(self) -> dict[PeerId, float]:
        """What each peer moved, in bytes per second of the whole busy period."""
        return {peer: size / ((self.last + 1 - self.first) * BUCKET_S) for peer, size in self.sizes.items()}


# ---- From spans to the rates of paths and of the link.


SETTLE_S = 6.0
"""Delivery reports queue behind the buffers of their sender: over a slow link that takes seconds."""

LONGEST_SPAN_S = 30.0
"""Of a longer span only the end counts: earlier buckets are already evaluated."""

SHORTEST_S = 1e-3
"""Bytes that arrive at once, out of a buffer, count as if they had taken this time."""

BREADTH_MEMORY_S = 600.0
BUSY_PERIODS = 4
"""The busy period with the highest mean counts, among this many last ones."""

SLOW_SHARE = 0.5
"""A path that gets less than this share of what the link could have moved is itself the limit."""

FEWEST_SHARES = 10
"""A second in all. The end of a transfer may be reported late, or never, so that the link seems to have room."""

SURPASSED = 2.0
"""The samples that showed a slow path are void once it carries so many times as much."""

LONG_S = 10.0
"""Long enough that bytes which arrived a little earlier than they were read make no difference."""

IDLE_SHARE = 0.5
"""A link that moves less than this share of its rate has room."""

MAX_PATHS = 256


@dataclass
class Path:
    """One direction of the way to one peer.

    `rate` is what it can carry. `shares` relate that rate to what the link could have moved at that time if the path
    had let it. `means` are the bytes per second that it moved in whole busy periods.
    """

    rate: Estimate = field(default_factory=Estimate)
    shares: Estimate = field(default_factory=Estimate)
    means: deque[float] = field(default_factory=lambda: deque(maxlen=BUSY_PERIODS))

    @property
    def share(self) -> float | None:
        """The share, once there are enough samples; None before."""
        return self.shares.value if self.shares.samples >= FEWEST_SHARES else None

    @property
    def mean(self) -> float | None:
        """The highest of the means; None before the first."""
        return max(self.means, default=None)


class DirectionMeter:
    """One direction of a peer's access link."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = Estimate(MEMORY_BYTES / BUCKET_S)
        self.caps: Mapping[PeerId, float] = {}
        """What peers with a cap give this one at least, if they divide it among all that ask, in bytes per second."""
        self.changes = 0
        """How many buckets were evaluated."""
        self._clock = clock
        self._paths: BoundedDict[PeerId, Path] = BoundedDict(MAX_PATHS)
        self._buckets: dict[int, TimeBucket] = {}
        self._busy_period: BusyPeriod | None = None
        self._settled = self._horizon = -math.inf
        self._breadth, self._broad_s = 0, -math.inf
        self._run = BucketRun()
        self._long_bytes, self._long_since = 0.0, -math.inf

    def add_total(self, span: Span, use: BulkUse) -> None:
        """Count bytes moved to or from all peers, by spans that may be shorter than those given to `add`."""
        for number, seconds in self._cover(span) if use is not BulkUse.PROBED else ():
            self._bucket(number).total += span.size * seconds / max(span.end_s - span.begin_s, SHORTEST_S)

    def add(self, peer: PeerId, span: Span, use: BulkUse, *, in_total: bool = False) -> None:
        """Count bytes moved to or from `peer`. With `in_total` they are counted as by `add_total`, too."""
        in_total = in_total and use is not BulkUse.PROBED
        whole_s, is_open = max(span.end_s - span.begin_s, SHORTEST_S), span.loaded and span.room
        for number, seconds in self._cover(span):
            bucket, size = self._bucket(number), span.size * seconds / whole_s
            if (flow := bucket.get((peer, use))) is None:
                flow = bucket[peer, use] = Flow()
            flow.size += size
            flow.moving_s += seconds
            if is_open:
                flow.open_s += seconds
            if in_total:
                bucket.total += size

    def note(self, peer: PeerId, size: int) -> None:
        """Count bytes that were moved lately, too few to tell how fast."""
        number = math.floor(self._clock() / BUCKET_S)
        if size and number > self._settled:
            self._bucket(number).setdefault((peer, BulkUse.WORK), Flow()).untimed += size

    def settle(self, *, all_of_them: bool = False) -> None:
        """Evaluate the buckets that are complete, or (after a busy period) all that there are."""
        horizon = math.floor((self._clock() - SETTLE_S) / BUCKET_S)
        if horizon == self._horizon and not all_of_them:
            return
        self._horizon = horizon
        while self._buckets and ((number := min(self._buckets)) < horizon or all_of_them):
            bucket = self._buckets.pop(number)
            self._evaluate(bucket, number)
            self._add_long(bucket, number)
            self._note_busy_period(number, bucket)
            self._settled = number
            self.changes += 1
        if all_of_them:
            self._end_run()
        if self._busy_period is not None and self._busy_period.is_over(horizon):
            self._end_busy_period(self._busy_period)

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

    def _bucket(self, number: int) -> TimeBucket:
        if (bucket := self._buckets.get(number)) is None:
            bucket = self._buckets[number] = TimeBucket()
        return bucket

    def _cover(self, span: Span) -> list[tuple[int, float]]:
        """The open buckets that a span touches, and for how many seconds; none for one that cannot be."""
        self.settle()
        begin_s, end_s = span.begin_s, span.end_s
        if not (math.isfinite(begin_s) and begin_s <= end_s <= self._clock() + BUCKET_S):
            return []
        begin_s = max(min(begin_s, end_s - SHORTEST_S), end_s - LONGEST_SPAN_S)
        cover = []
        for number in range(math.floor(begin_s / BUCKET_S), math.floor(end_s / BUCKET_S) + 1):
            seconds = min(end_s, (number + 1) * BUCKET_S) - max(begin_s, number * BUCKET_S)
            if number > self._settled and seconds > 0.0:
                cover.append((number, seconds))
        return cover

    def _evaluate(self, bucket: TimeBucket, number: int) -> None:
        when = (number + 1) * BUCKET_S
        spare = self._evaluate_total(bucket, number, when)
        for (peer, use), flow in bucket.items():
            if flow.fills:
                self._evaluate_path(peer, flow, spare if use is BulkUse.WORK else 0.0, when)

    def _evaluate_total(self, bucket: TimeBucket, number: int, when: float) -> float:
        """Take in what all moved together; returns the bytes that could have been moved besides, 0 if unknown."""
        own = {key: flow for key, flow in bucket.items() if key[1] is not BulkUse.PROBED and flow.fills}
        moving = len(own)
        if not moving:
            return 0.0
        if moving >= self._breadth or when - self._broad_s > BREADTH_MEMORY_S:
            self._breadth, self._broad_s = moving, when
        rate, known = bucket.total / BUCKET_S, self.total.value
        if known is not None and moving < self._breadth and rate < IDLE_SHARE * known:
            return (known - rate) * BUCKET_S
        waiting = sum(flow.is_open and not self._is_slow(peer) for (peer, _), flow in own.items())
        if waiting:
            use = Use.SEVERAL_WAIT if waiting >= min(2, self._breadth) else Use.ONE_WAITS
        else:
            free = sum(not self._is_capped(peer, flow) for (peer, _), flow in own.items())
            use = Use.BROAD if free and 2 * free >= self._breadth else Use.LITTLE
        for window in self._run.add(number, bucket.total, use):
            self._take_in(window)
        return 0.0

    def _is_capped(self, peer: PeerId, flow: Flow) -> bool:
        """Whether what moves to or from a peer may be what that one limits itself to."""
        return peer in self.caps and flow.size / BUCKET_S >= NEAR * self.caps[peer]

    def _add_long(self, bucket: TimeBucket, number: int) -> None:
        """Compare what was moved in `LONG_S` seconds, pauses and all, with the known rate, once they are over."""
        if (number - self._long_since) * BUCKET_S >= LONG_S:
            self.total.surpass(self._long_bytes / LONG_S, number * BUCKET_S)
            self._long_bytes, self._long_since = 0.0, number
        self._long_bytes += bucket.total + sum(flow.untimed for flow in bucket.values())

    def _end_run(self) -> None:
        for window in self._run.end():
            self._take_in(window)

    def _take_in(self, window: TimeWindow) -> None:
        known = self.total.value
        loaded = window.use is Use.SEVERAL_WAIT
        if known is not None and window.use is Use.ONE_WAITS:  # rather the link than a path that is as fast
            loaded = window.rate >= NEAR * known
        if loaded or window.use is Use.BROAD or known is None or window.rate > known:
            shows = window.use >= Use.BROAD
            self.total.add(window.rate, window.end_s, loaded=loaded, count=window.buckets, shows=shows)

    def _evaluate_path(self, peer: PeerId, flow: Flow, spare: float, when: float) -> None:
        """`spare`: further bytes that the link could have moved in this bucket."""
        path, rate = self._path(peer), flow.size / BUCKET_S
        share = flow.size / (flow.size + spare)
        shows = spare > 0.0 and flow.is_open
        path.rate.add(rate, when, loaded=shows and share < SLOW_SHARE)
        if shows:
            path.shares.add(share, when, loaded=True)
        elif (path.rate.value or 0.0) > SURPASSED * (path.shares.value or math.inf) * (self.total.value or math.inf):
            path.shares = Estimate()

    def _is_slow(self, peer: PeerId) -> bool:
        """Whether the path is itself the limit of what goes over it, so that it shows nothing about the link."""
        share = self._paths[peer].share if peer in self._paths else None
        return share is not None and share < SLOW_SHARE

    def _path(self, peer: PeerId) -> Path:
        path = self._paths.get(peer) or Path()
        self._paths[peer] = path  # used last: to the end
        return path

    def _note_busy_period(self, number: int, bucket: TimeBucket) -> None:
        if not any(use is BulkUse.WORK for _, use in bucket):
            return
        if self._busy_period is not None and self._busy_period.is_over(number):
            self._end_busy_period(self._busy_period)
        self._busy_period = self._busy_period or BusyPeriod(number)
        self._busy_period.add(number, bucket)

    def _end_busy_period(self, busy_period: BusyPeriod) -> None:
        self._busy_period = None
        self._end_run()
        for peer, mean in busy_period.means().items():
            self._path(peer).means.append(mean)


class LinkMeter:
    """Both directions of a peer's link; `clock` is the loop's."""

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
