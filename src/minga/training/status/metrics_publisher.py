"""What a peer tells the others, for their displays, of all that it has done: its `Metrics` on the board."""

from __future__ import annotations

import asyncio
import math
import time

import msgspec

from minga.core.thread_guard import any_thread, loop_bound
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import BEATS_PER_SECOND
from minga.network.rpc.node import Node
from minga.training.record_kinds import Metrics

METRICS_PERIOD_S = 2.0
"""Shortest time between two of these records of a peer: nobody but people looks at them."""

PERIOD_BEATS = 2.0
"""The same in beats of the board, of which a large swarm makes fewer."""


@loop_bound
class MetricsPublisher:
    """Adds up what a peer did, and publishes it now and then on `loop`, the one of `board` and `node`."""

    def __init__(self, board: Board, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self._board, self._node, self._loop = board, node, loop
        self._totals = self._due = Metrics(0, 0.0, 0, 0)
        self._is_due = False  # set by the program's thread, reset by the loop's
        self._published_s = -math.inf

    @any_thread
    def count(self, samples: int, loss: float | None) -> None:
        """Add a micro-batch. To be called by one thread, the one that publishes."""
        t, has_loss = self._totals, loss is not None
        self._totals = Metrics(t.step, t.loss_sum + (loss or 0.0), t.samples + samples, t.mini_steps + has_loss)

    @any_thread
    def publish(self, step: int) -> None:
        """Let the others see the totals after `step`, or later ones, as soon as the last record is old enough.

        Raises `RuntimeError` once the loop is closed.
        """
        self._due = msgspec.structs.replace(self._totals, step=step)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        period_s = max(METRICS_PERIOD_S, PERIOD_BEATS * self._board.alive_count / BEATS_PER_SECOND)
        self._loop.call_later(max(0.0, self._published_s + period_s - time.monotonic()), self._publish)

    def _publish(self) -> None:
        self._published_s, self._is_due = time.monotonic(), False
        sent, received = self._node.traffic()
        self._board.put(msgspec.structs.replace(self._due, bytes_sent=sent, bytes_received=received))
