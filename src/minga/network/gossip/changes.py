"""Telling others, by call or by waiting, that something on a board changed."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from minga.core.aio import Observers, Signal
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId


class Presence(Enum):
    """How a peer's being there changed: it appeared, said goodbye, or fell silent."""

    JOINED = auto()
    LEFT = auto()
    LOST = auto()


Change = str | Presence
"""What changed about one owner: the content of its record of this name, or whether it is there."""

Observer = Callable[[PeerId, Change], None]


@loop_bound
class ChangeCounter:
    """A counter of changes with observers; `generation` grows by one with each change."""

    def __init__(self) -> None:
        self.generation = 0
        self._observers = Observers[[PeerId, Change]]()
        self._bell = Signal()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each change from now on; returns the function that ends this."""
        return self._observers.add(observer)

    async def changed(self, since: int) -> int:
        """Wait until `generation` is greater than `since`; returns it."""
        while self.generation <= since:
            await self._bell.wait()
        return self.generation

    def _notify(self, peer: PeerId, change: Change) -> None:
        self.generation += 1
        self._bell.fire()
        self._observers.tell(peer, change)
