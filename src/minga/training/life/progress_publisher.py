"""What a member tells the others about itself: its `Progress` on the board."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from minga.core.events.training import MemberStatus
from minga.core.thread_guard import loop_bound
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import usual_beat_s
from minga.network.rpc.node import Node
from minga.training.bridge.assigned_port import AssignedPort
from minga.training.bridge.gradient_port import GradientPort
from minga.training.lineage import Lineage
from minga.training.record_kinds import IN_STEP, Progress, Status

BEFORE_BEAT = 0.95
"""The share of the board's longest pause after which a peer tells what others need not act on at once."""

LATER_S, LARGE = 1.0, 64
"""Seconds after which a peer tells, at the latest, whether its round still runs; among more peers than so many only
after the time of a beat."""


@loop_bound
class ProgressPublisher:
    """Publishes the progress of one member; `standing` tells at which step it is, and of how many samples that is.

    `client`, `lineage`, `distance` and, of the step, `vector_bytes` as in `Progress`. A new step or lineage, and
    whether the member takes part at all, are told at once, and once: who waits for the state asks for it each second.
    Whether it computes or averages is told if it still does so a moment later: in a run of short steps that would be
    two more records of each step, which each peer gets from each other one.
    """

    def __init__(
        self,
        board: Board,
        node: Node,
        port: GradientPort | AssignedPort,
        standing: Callable[[], tuple[int, int]],
        *,
        client: bool,
        vector_bytes: Callable[[int], int],
        lineage: Callable[[], Lineage],
        distance: Callable[[], int] = lambda: 0,
    ) -> None:
        self._board, self._node, self._port, self._standing = board, node, port, standing
        self._client, self._vector_bytes, self._lineage = client, vector_bytes, lineage
        self._distance = distance
        self._status: Status = "syncing"
        self._told: Progress | None = None
        self._told_s = -math.inf
        self._later: asyncio.TimerHandle | None = None

    def set_status(self, status: Status) -> None:
        """Say what the member does now."""
        if status != self._status:
            self._node.events.emit(MemberStatus(status=status, step=self._standing()[0]))
        self._status = status
        told = self._told
        if told is not None and (told.step, told.lineage) == (self._standing()[0], self._lineage()):
            if status == told.status:
                return
            if status in IN_STEP and told.status in IN_STEP:
                loop = asyncio.get_running_loop()
                self._later = self._later or loop.call_later(self._later_s, self._publish_status)
                return
        self._publish()

    async def run(self) -> None:
        """Publish what changes until cancelled."""
        try:
            while True:
                pause_s = self._told_s + self._period_s - asyncio.get_running_loop().time()
                if pause_s > 0.0:
                    await asyncio.sleep(pause_s)
                    continue
                told_s = self._told_s
                if self._present() == self._told:
                    await self._port.changed.wait(timeout_s=4 * self._period_s)
                if self._told_s == told_s:
                    self._publish()
        finally:
            self._forget_later()

    @property
    def _period_s(self) -> float:
        # As rarely as beats, whose place these records take: a little sooner, or each would come right after one.
        return BEFORE_BEAT * usual_beat_s(self._board.alive_count)

    @property
    def _later_s(self) -> float:
        # In a large swarm news take as long as a round of a small model, and would come when that is over.
        return self._period_s if self._board.alive_count > LARGE else min(self._period_s / 2.0, LATER_S)

    def _publish_status(self) -> None:
        self._later = None
        if self._told is not None and self._told.status != self._status:
            self._publish()

    def _forget_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _publish(self) -> None:
        self._told, self._told_s = self._present(), asyncio.get_running_loop().time()
        self._forget_later()
        self._board.put(self._told)

    def _present(self) -> Progress:
        report, (step, batch) = self._port.report(), self._standing()
        return Progress(
            step=step,
            samples=report.samples,
            samples_per_second=report.rate,
            status=self._status,
            client=self._client,
            vector_bytes=self._vector_bytes(step),
            target_batch_size=batch,
            lineage=self._lineage(),
            distance=self._distance(),
        )
