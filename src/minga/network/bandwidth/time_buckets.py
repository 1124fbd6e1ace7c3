"""Slots of time, and what was moved in them: alone, a few in a row, or all of a round."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from minga.network.bandwidth.delivery_reports import BulkUse
from minga.network.interface import PeerId

SLOT_S = 0.1
FILLED = 0.9
"""The share of a slot for which whoever fills it was moving."""

FEWEST_SLOTS, RUN_SLOTS, MOST_SLOTS = 3, 5, 30
FEWEST_BYTES, RUN_BYTES = 1 << 18, 1 << 20
MEMORY_BYTES = 8 << 20
"""What a line carries is judged by the last 3 seconds of work, or by the last that moved so many bytes."""

BUSY_S = 0.5
"""Seconds of silence that end an exercise."""

LONGEST_EXERCISE_S = 30.0


@dataclass
class Flow:
    """What one peer moved in a slot: bytes, for how many seconds it was moving, and loaded with room on the other side;
    and bytes besides whose time is not known.
    """

    size: float = 0.0
    untimed: float = 0.0
    moving_s: float = 0.0
    open_s: float = 0.0

    @property
    def fills(self) -> bool:
        """Whether it was moving nearly all the time."""
        return self.moving_s >= FILLED * SLOT_S and self.size > 0.0

    @property
    def is_open(self) -> bool:
        """Whether more was waiting that the other side would have taken."""
        return self.open_s >= FILLED * SLOT_S


class TimeBucket(dict[tuple[PeerId, BulkUse], Flow]):
    """What each peer moved, and all bytes together that say something about the line."""

    total = 0.0


class Use(enum.IntEnum):
    """What the traffic of a slot can show about the line, more and more: nothing, or only that it carries that much;
    as much as half of the peers that this line ever moved bytes with at once can take; all that it carries, unless a
    single path is the limit; all that it carries.
    """

    LITTLE = 0
    BROAD = 1
    ONE_WAITS = 2
    SEVERAL_WAIT = 3


class TimeWindow(NamedTuple):
    """Slots in a row taken together: bytes per second, how many they are, loop time at their end, and what their
    traffic shows, in the median.
    """

    rate: float
    slots: int
    end_s: float
    use: Use


class BucketRun:
    """Slots in a row, cut into stretches of at least `RUN_SLOTS` slots and `RUN_BYTES` bytes, or `MOST_SLOTS` slots.

    What came while this process was at something else counts for the slot in which it was read. Few bytes fit into a
    slot of a slow line, so that this alone would make rates of half as much again out of nothing; and stretches that
    overlapped would all be wrong together.
    """

    def __init__(self) -> None:
        self._size = 0.0
        self._uses: list[Use] = []
        self._next, self._waits = 0, False

    def add(self, number: int, size: float, use: Use) -> Iterator[TimeWindow]:
        """Take in the slot of this number; tells of the stretches that it ends. Loaded slots and others are apart."""
        waits = use >= Use.ONE_WAITS
        if (number, waits) != (self._next, self._waits):
            yield from self.end()
        self._next, self._waits = number + 1, waits
        self._size += size
        self._uses.append(use)
        if len(self._uses) >= (RUN_SLOTS if self._size >= RUN_BYTES else MOST_SLOTS):
            yield from self.end()

    def end(self) -> Iterator[TimeWindow]:
        """Nothing more comes for now: tells of what is left, if it is enough to tell anything."""
        size, uses = self._size, self._uses
        self._size, self._uses = 0.0, []
        if len(uses) >= FEWEST_SLOTS or size >= FEWEST_BYTES:
            usual = sorted(uses)[len(uses) // 2]
            yield TimeWindow(size / (len(uses) * SLOT_S), len(uses), self._next * SLOT_S, usual)


class BusyPeriod:
    """Bytes by peer from one slot to another, both included."""

    def __init__(self, number: int) -> None:
        self.first = self.last = number
        self.sizes: dict[PeerId, float] = {}

    def is_over(self, number: int) -> bool:
        """Whether a slot of this number is no part of it."""
        return (number - self.last) * SLOT_S > BUSY_S or (number - self.first) * SLOT_S >= LONGEST_EXERCISE_S

    def add(self, number: int, slot: TimeBucket) -> None:
        """Take in a later slot."""
        self.last = number
        for (peer, use), flow in slot.items():
            if use is BulkUse.WORK:
                self.sizes[peer] = self.sizes.get(peer, 0.0) + flow.size + flow.untimed

    def means(self) -> dict[PeerId, float]:
        """What each peer moved, in bytes per second of the whole exercise."""
        return {peer: size / ((self.last + 1 - self.first) * SLOT_S) for peer, size in self.sizes.items()}
