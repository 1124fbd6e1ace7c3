"""Telling others, by call or by waiting, that something on a board changed."""

from __future__ import annotations

from collections.abc import Callable

from minga.core.aio.signal import Signal
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId

Listener = Callable[[PeerId, str | None], None]
"""Called with the owner and the name whose content changed; name None: whether the owner is alive changed."""


@loop_bound
class ChangeCounter:
    """A counter of changes with listeners; `generation` grows by one with each change."""

    def __init__(self) -> None:
        self.generation = 0
        self._listeners: list[Listener] = []
        self._bell = Signal()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each change from now on; returns the function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def changed(self, since: int) -> int:
        """Wait until `generation` is greater than `since`; returns it."""
        while self.generation <= since:
            await self._bell.wait()
        return self.generation

    def _notify(self, peer: PeerId, name: str | None) -> None:
        self.generation += 1
        self._bell.fire()
        for listener in list(self._listeners):
            listener(peer, name)
