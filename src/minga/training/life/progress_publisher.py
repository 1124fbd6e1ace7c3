"""What a member tells the others about itself: its `Progress` on the board."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from minga.averaging.messages import Report
from minga.core.aio.signal import Signal
from minga.core.events.training import MemberStatus
from minga.core.thread_guard import loop_bound
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import BEATS_PER_SECOND
from minga.network.rpc.node import Node
from minga.training.record_kinds import Progress, Status


class Reporting(Protocol):
    """The port of a trainer, as far as it is announced."""

    changed: Signal

    def report(self) -> Report:
        """How far it is."""


PROGRESS_PERIOD_S = 0.5
"""Shortest time between two progress records of a peer, changes of its status aside."""


@loop_bound
class ProgressPublisher:
    """Publishes the progress of one member; `standing` tells at which step it is, and of how many samples that is.

    `client`, `epoch` and, of the step, `vector_bytes` as in `Progress`.
    """

    def __init__(
        self,
        board: Board,
        node: Node,
        port: Reporting,
        standing: Callable[[], tuple[int, int]],
        *,
        client: bool,
        vector_bytes: Callable[[int], int],
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._board, self._node, self._port, self._standing = board, node, port, standing
        self._client, self._vector_bytes, self._epoch = client, vector_bytes, epoch
        self._status: Status = "syncing"

    def set_status(self, status: Status) -> None:
        """Say what the member does now."""
        if status != self._status:
            self._node.events.emit(MemberStatus(status=status, step=self._standing()[0]))
        self._status = status
        self._publish()

    async def run(self) -> None:
        """Publish what changes until cancelled."""
        while True:
            # In a large swarm no more often than the board's own beats, which these records take the place of.
            period_s = max(PROGRESS_PERIOD_S, self._board.alive_count / BEATS_PER_SECOND)
            await asyncio.sleep(period_s)
            await self._port.changed.wait(timeout_s=4 * period_s)
            self._publish()

    def _publish(self) -> None:
        report, (step, batch) = self._port.report(), self._standing()
        self._board.put(
            Progress(
                step=step,
                samples=report.samples,
                samples_per_second=report.rate,
                status=self._status,
                time=self._node.network.wall_time(),
                client=self._client,
                vector_bytes=self._vector_bytes(step),
                target_batch_size=batch,
                epoch=self._epoch(),
            )
        )
