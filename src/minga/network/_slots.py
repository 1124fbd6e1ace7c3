"""Slots of time, and what was moved in them: alone, a few in a row, or all of a round."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from minga.network._interface import PeerId
from minga.network._receipts import BulkUse

SLOT_S = 0.1
FILLED = 0.9
"""The share of a slot for which whoever fills it was moving."""

RUN_SLOTS = 5
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


class Slot(dict[tuple[PeerId, BulkUse], Flow]):
    """What each peer moved, and all bytes together that say something about the line."""

    total = 0.0


class Run:
    """Slots in a row that are loaded, or not: the latest `RUN_SLOTS` of them are taken together.

    What came while this process was at something else counts for the slot in which it was read. Few bytes fit into a
    slot of a slow line, so that this alone would make rates of half as much again out of nothing.
    """

    def __init__(self) -> None:
        self._totals: deque[float] = deque(maxlen=RUN_SLOTS)
        self._next, self._loaded = 0, False

    def mean(self, number: int, total: float, *, loaded: bool) -> float:
        """Take in the slot of this number; returns the mean of the run's latest slots."""
        if (number, loaded) != (self._next, self._loaded):
            self._totals.clear()
        self._totals.append(total)
        self._next, self._loaded = number + 1, loaded
        return math.fsum(self._totals) / len(self._totals)


class Exercise:
    """Bytes by peer from one slot to another, both included."""

    def __init__(self, number: int) -> None:
        self.first = self.last = number
        self.sizes: dict[PeerId, float] = {}

    def is_over(self, number: int) -> bool:
        """Whether a slot of this number is no part of it."""
        return (number - self.last) * SLOT_S > BUSY_S or (number - self.first) * SLOT_S >= LONGEST_EXERCISE_S

    def add(self, number: int, slot: Slot) -> None:
        """Take in a later slot."""
        self.last = number
        for (peer, use), flow in slot.items():
            if use is BulkUse.WORK:
                self.sizes[peer] = self.sizes.get(peer, 0.0) + flow.size + flow.untimed

    def means(self) -> dict[PeerId, float]:
        """What each peer moved, in bytes per second of the whole exercise."""
        return {peer: size / ((self.last + 1 - self.first) * SLOT_S) for peer, size in self.sizes.items()}
