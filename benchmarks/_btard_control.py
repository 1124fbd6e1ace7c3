"""What the checks of a secure step cost in bytes: members in virtual time, whose nodes count what they receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from blake3 import blake3

from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.spread import FetchPart, Found, FoundStatements, PartDelivery
from minga.security.protocol.statements import EquivocationProof, Told
from minga.simulation import run_virtual
from tests.worlds.secure_swarm import SecureSwarm

FRAME_BYTES = 5
STATEMENTS = (Told, FoundStatements, EquivocationProof)
"""The messages in which statements arrive."""
COMPANIONS = (PartDelivery, FetchPart, Found)
"""The messages that go with parts and aggregates; they carry the Merkle paths."""

T = TypeVar("T")


class Noise:
    """Work: gradients are noise of their seeds, and steps change nothing."""

    def __init__(self, numel: int) -> None:
        self.layout, self.step = VectorLayout((numel,), "float32"), 0

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:  # noqa: ARG002
        """See `TrainingBackend`."""
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))
        return torch.from_numpy(generator.standard_normal(self.layout.total, np.float32))

    async def apply(self, step: int, mean: torch.Tensor) -> None:  # noqa: ARG002
        """See `TrainingBackend`."""
        self.step = step + 1

    async def digest(self) -> bytes:
        """See `TrainingBackend`."""
        return blake3(str(self.step).encode()).digest()

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """See `TrainingBackend`; nobody comes late."""


class CountingStream(MessageStream):
    """Adds up in `received` the bytes of the frames that come, by what is in them."""

    _received: Counter[Any]

    @classmethod
    def of(cls, stream: MessageStream, received: Counter[Any]) -> CountingStream:
        """The same stream, which counts from now on, however the node made it."""
        stream.__class__ = cls
        counting = cast("CountingStream", stream)
        counting._received = received
        return counting

    async def receive_bulk_into(self, target: memoryview, filled: Callable[[int], None] | None = None) -> None:
        """See `MessageStream`."""
        await super().receive_bulk_into(target, filled)
        self._received[memoryview] += target.nbytes

    def _decode(self, body: bytearray | memoryview, message_type: type[T]) -> T:
        self._received[message_type] += len(body) + FRAME_BYTES
        return super()._decode(body, message_type)


class CountingNode(Node):
    """A node whose streams count."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.received: Counter[Any] = Counter()

    def wrap(self, *arguments: Any, **options: Any) -> MessageStream:
        return CountingStream.of(super().wrap(*arguments, **options), self.received)


class Control(NamedTuple):
    """Bytes that one member receives in a step, on average: in statements; with the calls and answers around them; and
    with the Merkle paths of the parts. Parts and aggregates themselves are in none of them.
    """

    statements: float
    with_calls: float
    with_paths: float


def control(members: int, numel: int, steps: int) -> Control:
    """Let so many honest members take a step, and then `steps` that count, with a vector of so many elements."""
    return run_virtual(_control(members, numel, steps))


async def _control(members: int, numel: int, steps: int) -> Control:
    before, after = await _received(members, numel, 1), await _received(members, numel, 1 + steps)
    return Control(*((late - early) / steps / members for early, late in zip(before, after, strict=True)))


async def _received(members: int, numel: int, steps: int) -> Control:
    """All that members receive in so many steps. Raises what made one of them end."""
    swarm = SecureSwarm(members, lambda: Noise(numel), node_type=CountingNode)
    for end in (await swarm.run(steps)).values():
        if end is not None:
            raise end
    everything, received = 0, Counter[Any]()
    for peer in swarm.peers.values():
        everything += peer.node.traffic()[1]
        received += cast(CountingNode, peer.node).received
    with_paths = everything - received[memoryview]
    with_calls = with_paths - sum(received[kind] for kind in COMPANIONS)
    return Control(sum(received[kind] for kind in STATEMENTS), with_calls, with_paths)
