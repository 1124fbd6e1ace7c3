"""Who serves: one of the peers that the run spec names; when it dies, the first of those that stand by.

             nobody serves any more, and this one comes first of those that stand by
    STANDS BY ─────────────────────────────────────────────────────────────▶ SERVES
        ▲  └─ fetches a checkpoint every so many batches of the server          │
        └───────────────────────────────────────────────────────────────────────┘
             another one serves, too, and comes before this one

One comes before another that has more steps, and of equal steps the one with the larger id. Records are never ahead of
their owners, so of two that serve never both give way. What the one that gives way has applied since the checkpoint of
the other is lost to the top, and so are, when a server dies, at most as many batches as lie between two checkpoints,
and those of the moments in which a checkpoint travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from minga.core.errors import RejectedError, RemoteError
from minga.core.events.split import SplitCheckpointFailed, SplitCheckpointFetched, SplitGaveWay, SplitTookOver
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.split.server.batch_server import BatchServer
from minga.split.server.service import SplitService
from minga.split.standby.checkpoint import TopCheckpoint
from minga.split.standby.transfer import CheckpointServer, fetch
from minga.training.record_kinds import SplitServing

LOOK_S: Final = 0.5

T = TypeVar("T")


@loop_bound
class ServerSuccession:
    """One of the `allowed` servers of a run. It serves from the beginning, or with `stands_by` only after another.

    `begin` makes the service of `core`, whenever this peer begins to serve. Made on the loop.
    """

    def __init__(
        self,
        node: Node,
        board: Board,
        core: BatchServer,
        allowed: Collection[str],
        begin: Callable[[], SplitService],
        *,
        stands_by: bool = False,
    ) -> None:
        self._node, self._board, self._core, self._allowed, self._begin = node, board, core, allowed, begin
        self.checkpoint: TopCheckpoint | None = None
        """The newest one that was fetched, while this peer stands by."""
        self.service: SplitService | None = None if stands_by else begin()
        """None while this peer stands by."""
        CheckpointServer(node, allowed, self._is_due, self._take)
        self._task = node.spawn(self._run())

    @property
    def step(self) -> int:
        """Steps of the server's part, or of the checkpoint from which this peer would go on."""
        if self.service is not None:
            return self._core.applying.steps
        return 0 if self.checkpoint is None else self.checkpoint.step

    async def between_batches(self, function: Callable[[], T]) -> T:
        """Run a function while no batch is computed."""
        if self.service is not None:
            return await self.service.between_batches(function)
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def close(self) -> None:
        """Serve no more, and stand by no more; the program's part of the model has all that was applied."""
        self._task.cancel()
        if self.service is not None:
            self.service.close()  # first, so that nothing that waits is computed before
            await self.service.between_batches(self._core.applying.settle)
        self._board.retract(SplitServing)

    @any_thread
    def join(self) -> None:
        """Wait, after `close`, until the batch that is being computed is done; on another thread than the loop's."""
        if self.service is not None:
            self.service.join()

    # ---- inner workings

    async def _run(self) -> None:
        while True:
            if self.service is not None:
                await self._give_way(self.service)
            elif await self._stand_by():
                continue  # the next request waits at the server
            await asyncio.sleep(LOOK_S)

    def _others(self, *, stand_by: bool) -> Mapping[PeerId, int]:
        """The steps of other living servers, by their records."""
        return {
            peer: record.step
            for peer, record in self._board.payloads(SplitServing).items()
            if peer in self._allowed and peer != self._board.peer_id and record.stands_by == stand_by
        }

    def _first(self, steps: Mapping[PeerId, int]) -> PeerId:
        return max(steps, key=lambda peer: (steps[peer], peer))

    async def _give_way(self, service: SplitService) -> None:
        others = self._others(stand_by=False)
        own = self._board.peer_id
        if not others or self._first({**others, own: self.step}) == own:
            return
        service.close()
        self.service, self.checkpoint = None, None
        await asyncio.get_running_loop().run_in_executor(None, service.join)
        first = self._first(others)
        self._node.events.emit(SplitGaveWay(peer=first, step=others[first]))

    async def _stand_by(self) -> bool:
        """Fetch the next checkpoint, or take over; whether one was fetched."""
        serving = self._others(stand_by=False)
        if serving:
            return await self._fetch(self._first(serving))
        if self.checkpoint is not None:
            own = self._board.peer_id
            if self._first({**self._others(stand_by=True), own: self.step}) == own:
                await self._take_over(self.checkpoint)
        return False

    async def _fetch(self, server: PeerId) -> bool:
        try:
            found = await fetch(self._node, server, self.checkpoint, self._core.applying.check)
        except RemoteError as error:
            if isinstance(error, RejectedError) and error.code == RefusalCode.NOT_READY:
                return False
            self._node.events.emit(SplitCheckpointFailed(peer=server, why=error.message))
            return False
        self.checkpoint = found
        self._board.put(SplitServing(found.step, found.samples, len(found.sessions), stands_by=True))
        self._node.events.emit(SplitCheckpointFetched(step=found.step, peer=server))
        return True

    async def _take_over(self, checkpoint: TopCheckpoint) -> None:
        known = self._board.items(SplitServing, include_dead=True)
        newest = max(item.payload.step for item in known if item.owner in self._allowed)
        await asyncio.get_running_loop().run_in_executor(None, checkpoint.put, self._core)
        self.service, self.checkpoint = self._begin(), None
        self._node.events.emit(SplitTookOver(step=checkpoint.step, unseen=max(0, newest - checkpoint.step)))

    def _is_due(self, step: int) -> bool:
        """Whether one that stands by with a checkpoint of this step should have the next; if not here, then nowhere."""
        steps = self._core.applying.steps
        return self.service is None or steps >= step + self._core.section.standby_every or steps < step

    async def _take(self) -> TopCheckpoint | None:
        if self.service is None:
            return None
        return await self.service.between_batches(lambda: TopCheckpoint.take(self._core))
