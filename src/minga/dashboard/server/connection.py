"""HTTP over one connection, as uvicorn has it, with the bounds that it lacks: strangers may connect to a dashboard.

A connection over which nothing is asked, or whose other side does not read, costs its peer nothing and a file here, of
which the training of this process needs some, too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_OPEN: Final = 450
"""Connections; those beyond are closed at once."""
LOOK_S: Final = 10.0


class BoundedConnection(H11Protocol):
    """Closed if it rests or is stuck in the same way at two looks that are `LOOK_S` apart."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._looking: asyncio.TimerHandle | None = None
        self._drained = 0
        """How often the other side has read what waited for it: a slow download goes on through many looks."""
        self._still: tuple[object, int] | None = None
        """The last request (None before the first one) and `_drained` at the look before, if it was still then."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take part, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > MOST_OPEN:
            transport.abort()
        else:
            self._looking = self.loop.call_later(LOOK_S, self._look)

    def resume_writing(self) -> None:
        """The other side has read."""
        self._drained += 1
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        rests = self.cycle is None or self.cycle.response_complete
        if not (rests or self.flow.write_paused):
            self._still = None
        elif self._still == (self.cycle, self._drained):
            self.transport.abort()
            return
        else:
            self._still = self.cycle, self._drained
        self._looking = self.loop.call_later(LOOK_S, self._look)
