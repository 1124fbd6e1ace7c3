"""What a peer tells the others about its computing: its totals, by the record "metrics" on the board."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from minga.network.gossip.board import Board
from minga.network.rpc.node import Node
from minga.training.record_kinds import Metrics

METRICS_PERIOD_S: Final = 1.0
"""Shortest time between two records: each is signed, goes to all others, and is checked by all of them. In a run of
short steps one for each step costs more than the rest of the gossip."""


class MetricsPublisher:
    """Adds up the micro-batches of one peer, on the thread that trains. `soon` has the event loop call a function, so
    many seconds from now.

    Records have totals, so nothing is lost between two of them.
    """

    def __init__(self, board: Board, node: Node, soon: Callable[[float, Callable[[], None]], None]) -> None:
        self._board, self._node, self._soon = board, node, soon
        self._loss_sum, self._samples, self._mini_steps = 0.0, 0, 0
        self._step = 0
        self._told_s, self._is_due = float("-inf"), False

    def count(self, samples: int, loss: float | None) -> None:
        """Add a micro-batch."""
        self._samples += samples
        if loss is not None:
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
        sent, received = self._node.traffic()
        self._board.put(Metrics(self._step, self._loss_sum, self._samples, self._mini_steps, sent, received))
