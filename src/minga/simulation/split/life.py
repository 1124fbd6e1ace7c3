"""What a peer of a run with a cut model does once it is in the run: serve, or train batch by batch.

Server and clients are the code of production. What a client has on its disk, its parts and the number of its last
batch, outlives a crash: with it, it comes back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.network.interface import PeerId
from minga.simulation.split.parts import CutTask, NumberedBottom, NumberedTop, TopLayers
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.split.computing.halves import ClientHalf, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.exchange import LOOK_S, Exchange
from minga.split.server.batch_server import BatchServer
from minga.split.server.service import SplitService

LOSS_EVERY: Final = 25
"""Batches of all clients between two looks at the held-out loss."""
ROOM_BYTES: Final = 64 << 20
LOSS_DIGITS: Final = 4


@dataclass
class _Disk:
    """What a client keeps."""

    bottom: NumberedBottom
    head: nn.Module | None
    part: ModelPart


class SplitWorld:
    """The lives of the peers of one run. `note(kind, **fields)` adds entries to the log, and `on_step(step)` hears of
    each batch that was applied. Peers without a trainer serve.
    """

    def __init__(self, spec: RunSpec, note: Callable[..., None], on_step: Callable[[int], None]) -> None:
        self._spec, self._note, self._on_step = spec, note, on_step
        self._task = CutTask(spec)
        self._disks: dict[str, _Disk] = {}
        self._names: dict[str, str] = {}
        self._server: PeerId | None = None
        self._top: TopLayers | None = None

    async def live(self, peer: SimulatedPeer) -> None:
        """Take part until the end of the peer."""
        self._names[peer.network.peer_id] = peer.name
        if peer.settings is None:
            await self._serve(peer)
        else:
            await self._train(peer, peer.settings)

    async def _serve(self, peer: SimulatedPeer) -> None:
        self._server = peer.network.peer_id
        top = self._task.top()

        def applied(client: str, number: int, samples: int) -> None:
            self._applied(peer.name, top, applying.steps, self._names[client], number, samples)

        applying = NumberedTop(self._task, top, applied)
        entropy = random.Random(f"minga split sessions {peer.network.peer_id}").randbytes
        core = BatchServer(applying, self._spec.split, entropy=entropy)
        service = SplitService(peer.session.node, peer.session.board, core, room_bytes=ROOM_BYTES)
        try:
            await asyncio.Event().wait()
        finally:
            service.close()

    def _applied(self, server: str, top: TopLayers, step: int, client: str, number: int, samples: int) -> None:
        disk, fields = self._disks[client], dict[str, float]()
        if step % LOSS_EVERY == 1:
            loss = self._task.held_out_loss(disk.bottom, top, disk.head)
            fields["loss"] = round(loss, LOSS_DIGITS)
        self._note("batch.applied", peer=server, other=client, step=step, batch=number, samples=samples, **fields)
        self._on_step(step)

    async def _train(self, peer: SimulatedPeer, settings: TrainerSettings) -> None:
        disk, board = self._disk(peer.name), peer.session.board
        half = ClientHalf(disk.bottom, disk.head, disk.part, cross_entropy, self._spec.split, peer.network.peer_id)
        while self._server is None:
            await asyncio.sleep(LOOK_S)
        exchange = Exchange(peer.session.node, board, self._server, self._spec.split)
        while True:
            await peer.compute(settings, settings.micro_batch_s)
            disk.bottom.number += 1
            number = disk.bottom.number
            inputs, labels = self._task.batch(peer.name, number, settings.micro_batch)
            loss = await converse(half.train(inputs, labels), exchange.ask)
            if loss is None:
                self._note("batch.given_up", peer=peer.name, batch=number)
                continue
            peer.samples_done += settings.micro_batch
            self._note("batch.answered", peer=peer.name, batch=number, loss=round(loss, LOSS_DIGITS))

    def _disk(self, name: str) -> _Disk:
        if name not in self._disks:
            bottom, head, optimizer = self._task.bottom(), self._task.head(), self._spec.optimizer
            modules = [bottom] if head is None else [bottom, head]
            self._disks[name] = _Disk(bottom, head, ModelPart(modules, None, optimizer, optimizer.max_grad_norm))
        return self._disks[name]
