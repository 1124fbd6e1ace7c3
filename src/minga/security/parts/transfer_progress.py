"""Which transfers are under way, and which of them will be through in time.

What comes at a good pace need not be asked of others too: over slow lines that would multiply what everybody has to
carry. What trickles is asked for as if it did not come at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Iterator
from typing import Final

from minga.network.rpc.framing import MessageStream

BEGINNING_S: Final = 0.5
"""So young a transfer says nothing about its pace."""


class TransferProgress:
    """Of bulk bytes, by what they are."""

    def __init__(self) -> None:
        self._streams: dict[Hashable, list[MessageStream]] = {}

    @contextlib.contextmanager
    def expecting(self, what: Hashable, stream: MessageStream) -> Iterator[None]:
        """Within it this is what comes over a stream."""
        streams = self._streams.setdefault(what, [])
        streams.append(stream)
        try:
            yield
        finally:
            streams.remove(stream)
            if not streams:
                self._streams.pop(what, None)

    def in_time(self, what: Hashable, by_s: float) -> bool:
        """Whether something will be here, at the pace at which it comes, by a time of the event loop in seconds."""
        now = asyncio.get_running_loop().time()
        return now < by_s and any(_is_fast(stream, now, by_s) for stream in self._streams.get(what, ()))


def _is_fast(stream: MessageStream, now: float, by_s: float) -> bool:
    arrival = stream.counter.arriving
    if arrival is None:
        return False
    elapsed_s = now - arrival.begin_s
    return elapsed_s <= BEGINNING_S or arrival.begin_s + elapsed_s * arrival.size / max(1, arrival.received) <= by_s
