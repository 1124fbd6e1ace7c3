"""Events of a peer one after the other, for a program that has a loop instead of listeners."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from minga.core.events.bus import Event

MOST_WAITING = 10_000
"""Events that wait for a slow program; of more, the oldest are dropped."""


class EventStream(Iterator[Event]):
    """Iterate to receive each event that the peer emits from now on; the iteration ends when the peer is closed.

    A program that is slower than the peer loses the oldest events beyond 10,000; `dropped` counts them. Any one thread
    may iterate; `close`, or the end of a `with` block, ends the iteration before the peer ends.
    """

    def __init__(self, subscribe: Callable[[Callable[[Event], None]], Callable[[], None]]) -> None:
        self.dropped = 0
        self._waiting: deque[Event] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._unsubscribe = subscribe(self._on_event)

    def __next__(self) -> Event:
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                raise StopIteration
            return self._waiting.popleft()

    def get(self, timeout_s: float) -> Event | None:
        """The next event, or None if none comes in time, or none will come any more."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closed, timeout_s)
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """End the iteration after the events that wait; may be called twice."""
        with self._news:
            if not self._closed:
                self._closed = True
                self._unsubscribe()
            self._news.notify_all()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_event(self, event: Event) -> None:
        with self._news:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(event)
            self._news.notify()
