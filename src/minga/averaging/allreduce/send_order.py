"""In which order a member sends the chunks of its vector, where parts differ in size.

Each part goes over a stream of its own, and a line gives all its streams alike. Left alone, small parts would be
through early and the large part of a fast aggregator would come last: that one would idle at first, and could not make
up for it later. So small parts advance with the large ones: the chunk k of n of a part has its turn at (k + offset) / n
of the whole, the offsets being spread so that parts of few chunks do not all go at once, and no part gets ahead of one
that is clearly larger by more than `LEAD` of the whole. Parts that do not move at all are not waited for. Parts of
about the same size do not wait for each other: which of the paths to them is slow could not be seen then. (The round
of setup E of `benchmarks.links` takes 11.3 s in the virtual world, and 14.0 s if small parts do not wait.)

Connections that compete for the line of an aggregator get very different shares of it. Left alone, those with large
ones would be through early, the line would idle while the others finish at their own pace, and results, which need
everybody's chunk, would come as late as the last. So nobody sends more than a window of chunks beyond the results that
came back to it: a member that is ahead waits, and leaves the line to those behind. Where no results come at all nobody
waits, and relays, which pass on what their sites sent, have no window.

After the time that the plan allows for the round nobody is held back any more, so that it can be seen which member is
late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from minga.core.aio import Signal

LEAD: Final = 0.04
LARGER: Final = 1.5
"""How many times as large a part has to be to be waited for."""
STUCK_S: Final = 0.5
STUCK_SHARE: Final = 0.1
MOST_STUCK_S: Final = 5.0
"""A part that has not moved for this share of the round, within these bounds, is not waited for."""
WINDOW: Final = 0.12
LEAST_WINDOW: Final = 8
"""How far a part may get ahead of its results: this share of it, and at least so many chunks."""

GOLDEN: Final = 0.618034


@dataclass
class _Part:
    chunks: int
    size: int
    offset: float
    sent: int = 0
    returned: int = 0
    moved_s: float = 0.0
    returned_s: float = 0.0
    changed: Signal = field(default_factory=Signal)

    @property
    def turn(self) -> float:
        return (self.sent + self.offset) / self.chunks

    def is_waited_for_by(self, other: _Part) -> bool:
        """Whether the other part must not get far ahead of this one."""
        return self.size > LARGER * other.size

    @property
    def is_ahead(self) -> bool:
        """Whether results have to come back before more is sent."""
        return self.sent - self.returned >= max(LEAST_WINDOW, WINDOW * self.chunks)


class SendOrder:
    """The parts that one member sends in one round, which is expected to take `seconds` from now by `clock`."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._until_s = clock, clock() + seconds
        self._stuck_s = min(max(STUCK_S, STUCK_SHARE * seconds), MOST_STUCK_S)
        self._parts: dict[tuple[int, int], _Part] = {}

    def begin(self, key: tuple[int, int], chunks: int, size: int) -> None:
        """A part of so many chunks, which take `size` bytes together, is to be sent; each name once."""
        now, offset = self._clock(), (0.5 + key[1] * GOLDEN) % 1.0  # the same for all members
        self._parts[key] = _Part(chunks, size, offset, moved_s=now, returned_s=now)

    def end(self, key: tuple[int, int]) -> None:
        """Nothing more is sent of a part, or nobody waits for it."""
        if (part := self._parts.pop(key, None)) is not None:
            self._wake_smaller(part)

    def sent(self, key: tuple[int, int]) -> None:
        """A chunk went out."""
        part = self._parts[key]
        part.sent, part.moved_s = part.sent + 1, self._clock()
        self._wake_smaller(part)

    def returned(self, key: tuple[int, int]) -> None:
        """The result of a chunk came back."""
        if (part := self._parts.get(key)) is not None:
            part.returned, part.returned_s = part.returned + 1, self._clock()
            part.changed.fire()

    async def wait(self, key: tuple[int, int]) -> None:
        """Return when the next chunk of a part may go."""
        part = self._parts[key]
        lead = max(LEAD, 2.0 / max(p.chunks for p in self._parts.values()))
        while (now := self._clock()) < self._until_s:
            larger = [p for p in self._parts.values() if p.is_waited_for_by(part)]
            others = [p.turn for p in larger if now - p.moved_s < self._stuck_s]
            held = part.is_ahead and now - part.returned_s < self._stuck_s
            if not held and part.turn <= min(others, default=part.turn) + lead:
                break
            await part.changed.wait(min(self._stuck_s, self._until_s - now))
        part.moved_s = self._clock()

    def _wake_smaller(self, moved: _Part) -> None:
        for part in self._parts.values():
            if moved.is_waited_for_by(part):
                part.changed.fire()
