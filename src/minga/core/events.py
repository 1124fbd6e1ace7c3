"""Events: what a peer did, as data.

One stream of events per peer feeds the terminal displays, the logs, the fault scripts of tests and benchmarks, and
the comparison of two simulated runs. An event is a name and plain JSON values; nothing listens by default.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import NamedTuple

Value = str | int | float | bool | None | list[str] | list[int] | list[float]

logger = logging.getLogger("minga")


class Event(NamedTuple):
    """One thing that happened: `time` (seconds of the loop), `kind` such as `round.reduced`, plain `fields`."""

    time: float
    kind: str
    fields: dict[str, Value]

    def json(self) -> str:
        """The event as one line of JSON with sorted keys, floats rounded to a nanosecond."""
        return json.dumps({"t": round(self.time, 9), "kind": self.kind, **self.fields}, sort_keys=True)


class EventBus:
    """Hands each event to every listener, in order of subscription, in the thread that emits it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` with each event from now on; returns the function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, kind: str, **fields: Value) -> None:
        """Tell all listeners; a listener that raises is logged and does not disturb the emitter."""
        event = Event(self._clock(), kind, fields)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("an event listener failed on %s", kind)
