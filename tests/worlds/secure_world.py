"""For tests of secure members: work without a model, members that hold parts, and some that hand nothing out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from blake3 import blake3

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import RejectedError
from minga.core.events.bus import EventBus
from minga.core.refusal_code import RefusalCode
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import VirtualNetwork
from minga.security.messaging.spread import FETCH, Deliveries, FetchPart
from minga.security.parts.equal_parts import MerkleTree
from minga.security.parts.part_store import PartStore
from tests.worlds.secure_swarm import RUN_ID, DonatedBackend, SecurePeer


def part_holder(
    host: VirtualNetwork,
    addresses: dict[PeerId, Address],
    members: tuple[PeerId, ...],
    sizes: Sequence[int],
    owner: int,
    tree: MerkleTree,
) -> tuple[Node, PartStore, Deliveries]:
    """A member of one attempt, among `members`, that knows what parts, of these sizes, `owner` committed itself to."""
    addresses[host.peer_id] = host.address
    events = EventBus(asyncio.get_running_loop().time)
    node = Node(host, run_id=RUN_ID, role="trainer", lookup=addresses.get, events=events)
    host.process.context.run(node.start)
    store = PartStore(sizes, [0] * len(sizes))
    store.roots[owner] = tree.root

    async def find(step: int, attempt: int) -> tuple[PartStore, tuple[PeerId, ...]]:
        return store, members

    return node, store, Deliveries(node, find)


class Quadratic(DonatedBackend):
    """Work: a noisy bowl, 0.5 * |x|^2; the noise of a gradient follows from its seed. It takes `compute_s` seconds."""

    def __init__(
        self, numel: int, codec: str = "float32", rate: float = 0.1, noise: float = 0.1, compute_s: float = 0.0
    ) -> None:
        self.layout = VectorLayout((numel,), codec)
        self.parameters = {0: torch.ones(numel)}
        self.step, self.rate, self.noise, self.compute_s = 0, rate, noise, compute_s

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        if self.compute_s:
            await asyncio.sleep(self.compute_s)
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))
        noise = torch.from_numpy(generator.standard_normal(self.layout.total)).float()
        return self.parameters[step] + self.noise * noise

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        self.parameters[step + 1] = self.parameters[step] - self.rate * mean
        self.step = step + 1
        self.parameters.pop(step - 3, None)

    async def digest(self) -> bytes:
        return blake3(self.parameters[self.step].numpy().tobytes()).digest()

    def dump(self, step: int) -> bytes | None:
        return self.parameters[step].numpy().tobytes() if step in self.parameters else None

    def load(self, step: int, data: bytes) -> None:
        if len(data) != 4 * self.layout.total:
            raise ValueError("a state of another length")
        self.parameters, self.step = {step: torch.frombuffer(bytearray(data), dtype=torch.float32)}, step

    @property
    def loss(self) -> float:
        return 0.5 * float(self.parameters[self.step].square().mean())


class OtherDevice(Quadratic):
    """Each one rounds in another way, and a part of the gradient is nothing but that."""

    def __init__(self, numel: int, seeds: Iterator[int]) -> None:
        super().__init__(numel)
        self.rounding = torch.Generator().manual_seed(next(seeds))

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        gradient = await super().gradient(step, seed)
        gradient[:20] *= 1e-6
        return gradient + 1e-6 * torch.randn(len(gradient), generator=self.rounding)


def hide_parts(peer: SecurePeer) -> None:
    """Let a peer hand out what it brings to aggregators, and nothing that it is asked for."""

    async def refuse(peer: PeerId, stream: MessageStream) -> None:
        raise RejectedError("not from here", code=RefusalCode.ABSENT)

    peer.member._node.serve(FETCH, refuse)


def stall_fetches(peer: SecurePeer) -> None:
    """Let a peer hand out what it brings to aggregators, and let wait who asks it for anything."""

    async def stall(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(FetchPart)
        await asyncio.Event().wait()

    peer.member._node.serve(FETCH, stall)
