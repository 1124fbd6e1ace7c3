"""Buckets of time, and the bytes moved in them: alone, in a window of a few, or in a whole busy period."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from minga.network.bandwidth.delivery_reports import BulkUse
from minga.network.interface import PeerId

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
