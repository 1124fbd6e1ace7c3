"""What a peer tells of itself: totals to the other peers, by the record "metrics", and events to its own program."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from minga.core.events.bus import Event
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import LARGEST
from minga.network.rpc.node import Node
from minga.training.bridge.loop_thread import LOOK_S
from minga.training.record_kinds import Metrics

METRICS_PERIOD_S: Final = 1.0
"""Shortest time between two records: each is signed, goes to all others, and is checked by all of them. In a run of
short steps one for each step costs more than the rest of the gossip."""

MOST_LOSS: Final = 1e12
"""Beside a larger one in the sum, the losses that come after it would be rounded away."""


class MetricsPublisher:
    """Adds up the micro-batches of one peer, on the thread that trains. `soon` has the event loop call a function, so
    many seconds from now.

    Records have totals, so nothing is lost between two of them.
    """

    def __init__(self, board: Board, node: Node, soon: Callable[[float, Callable[[], None]], None]) -> None:
        self._board, self._node, self._soon = board, node, soon
        self._loss_sum, self._samples, self._mini_steps = 0.0, 0, 0
        self._step, self._since = 0, 0.0
        self._told_s, self._is_due = float("-inf"), False

    def count(self, samples: int, loss: float | None) -> None:
        """Add a micro-batch. Its loss is left out if it is not finite, or too large for a sum of losses."""
        self._samples += samples
        if loss is not None and abs(loss) <= MOST_LOSS and abs(self._loss_sum + loss) <= LARGEST:
            self._loss_sum += loss
            self._mini_steps += 1

    def publish(self, step: int, *, every_s: float = METRICS_PERIOD_S) -> None:
        """Let the others see the totals after `step`: at once, or with those of later steps when the last ones are
        `every_s` old.
        """
        self._step = step
        pause_s = max(0.0, self._told_s + every_s - time.monotonic())
        if pause_s > 0.0 and self._is_due:
            return
        self._is_due = True
        self._soon(pause_s, self._put)

    def _put(self) -> None:
        """On the event loop."""
        self._told_s, self._is_due = time.monotonic(), False
        self._since = self._since or self._board.run_clock.now()
        traffic = self._node.traffic()
        self._board.put(Metrics(self._step, self._loss_sum, self._samples, self._mini_steps, *traffic, self._since))


# ---- The stream of a peer's events, for a program that has a loop instead of listeners.


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
        while (event := self.get(LOOK_S)) is None:  # in slices, so that Ctrl-C is heard everywhere
            if self._closed and not self._waiting:
                raise StopIteration
        return event

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
