"""Events: the actions of a peer, as data for people and logs.

One stream of events per peer feeds the terminal displays, the logs, the fault scripts of tests and benchmarks, and
the comparison of two simulated runs. Nothing in a peer acts on events (see `minga.core.aio`), and nothing
listens by default. `minga.core.events.catalogue` has a class for each kind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, dataclass_transform

Value = str | int | float | bool | None | list[str] | list[int] | list[float]

logger = logging.getLogger("minga")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class EventData:
    """Base of the classes of the catalogue: each is a frozen dataclass whose fields are given by name."""

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str) -> None:
        super().__init_subclass__()
        cls.kind = kind
        dataclass(frozen=True, kw_only=True)(cls)


class Event(NamedTuple):
    """One thing that happened: `time` (seconds of the loop), `kind` such as `round.reduced`, plain `fields`.

    `data` is the same as an object of the catalogue, with typed fields; None for a program's own events.
    """

    time: float
    kind: str
    fields: dict[str, Value]
    data: EventData | None = None

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

    def emit(self, data: EventData) -> None:
        """Tell all listeners; a listener that raises is logged and does not disturb the emitter."""
        self._tell(Event(self._clock(), data.kind, dict(vars(data)), data))

    def emit_own(self, kind: str, fields: dict[str, Value]) -> None:
        """The same for an event of a program, whose kind is in no catalogue."""
        self._tell(Event(self._clock(), kind, fields))

    def _tell(self, event: Event) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("an event listener failed on %s", event.kind)
