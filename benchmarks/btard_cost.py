"""What secure steps cost beside ordinary averaging.

    python -m benchmarks.btard_cost --json

**Control bytes.** What one member receives in a step besides parts and aggregates, measured over the real nodes in
virtual time, after a first step, with all members honest; those who validate (one in sixteen, at least one) contribute
nothing meanwhile. By number of members:

    measured     bytes of the statements, as they are encoded on the wire and as often as they arrive
    formula      BTARD section 7 with flat hashes and one projection: from each of n members n hashes of 32 bytes, n
                 times 16 bytes of claims, 128 bytes for the coin, four envelopes of 96. Here there are five envelopes,
                 three projections of each part, and a Merkle root in place of the hashes
    with_calls   `measured` and what goes with it: names of calls, acknowledgements, signs of life
    with_paths   all that is received besides parts and aggregates: that, and the Merkle path of each part

**Time.** Real processes over iroh on loopback average one vector, in turns by an ordinary all-reduce and by a secure
step; the gradients are there at once, and nobody validates, so that what validators compute is not in it. Figures in
brackets are [median, minimum, maximum]. The first rounds, in which memory is fresh, do not count: from then on a run
uses it again.

    step_ratio             median of secure_s by that of plain_s
    cpu_ratio              the same of the CPU seconds of all processes
    plain_s, plain_cpu_s   from the moment in which all hold the plan of the group until the last has the result
    secure_s, secure_cpu_s from the gradients until the last has applied the aggregate and compared all claims about the
                           part that it aggregates with the bytes
    others_share           share of the machine's CPU time that went to other processes
    steps_correct          secure steps after which nobody is gone and all have the same aggregate

ok: measured is within 20 % of the formula for all numbers of members, and not a byte more for a vector that is a
thousand times as long; all steps are correct; step_ratio (cpu_ratio, where others_share exceeds 0.10) is at most 2.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from blake3 import blake3

from benchmarks import _machine
from benchmarks._btard_time import measure_steps
from benchmarks._report import emit, finish, parser
from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.spread import FetchPart, Found, FoundStatements, PartDelivery
from minga.security.protocol.statements import EquivocationProof, Told
from minga.simulation import run_virtual
from tests.worlds.secure_swarm import SecureSwarm

LARGEST_DEVIATION = 0.2
ELEMENTS_PER_PART = 3
LONGER = 1000
RATIO_LIMIT = 2.0
HASH_BYTES, CLAIM_BYTES = 32, 16
COIN_BYTES = 128
"""Commitment, secret, salt, and what names the toss."""
ENVELOPE_BYTES, ENVELOPES = 96, 4
"""Signed messages: gradient and result hashes; the coin's commitment; its reveal; projections and norms."""


def formula_bytes(members: int) -> int:
    """Control bytes that each member receives in a step, by BTARD section 7; see the module's documentation."""
    return members * (members * (HASH_BYTES + CLAIM_BYTES) + COIN_BYTES + ENVELOPES * ENVELOPE_BYTES)


def measure_control(members: int, steps: int) -> dict[str, Any]:
    """Control bytes of so many members, by the keys of the module's documentation."""
    measured = control(members, members * ELEMENTS_PER_PART, steps)
    figures = {
        "measured": round(measured.statements),
        "formula": formula_bytes(members),
        "with_calls": round(measured.with_calls),
        "with_paths": round(measured.with_paths),
    }
    emit(members=members, **figures)
    return figures


def is_near(figures: dict[str, Any]) -> bool:
    """Whether the measured bytes are about as many as the formula says."""
    return abs(figures["measured"] / figures["formula"] - 1.0) <= LARGEST_DEVIATION


def main() -> int:
    """Measure, and print."""
    arguments = options()
    counts = [int(count) for count in arguments.members.split(",")]
    figures = {str(count): measure_control(count, arguments.steps) for count in counts}
    short, long = (
        control(counts[0], counts[0] * ELEMENTS_PER_PART * longer, arguments.steps) for longer in (1, LONGER)
    )
    steps = measure_steps(arguments)
    ratio = steps["cpu_ratio" if steps["others_share"] > _machine.QUIET_SHARE else "step_ratio"]
    ok = all(map(is_near, figures.values())) and short.statements == long.statements
    ok = ok and steps["steps_correct"] == steps["steps"] and ratio <= RATIO_LIMIT
    return finish(
        "btard_cost",
        ok,
        arguments.json,
        control_bytes=figures,
        longer_vector={"members": counts[0], "measured": [round(each.statements) for each in (short, long)]},
        **steps,
    )


def options() -> Any:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--members", default="4,8,16,32,64", help="of whom to count the control bytes")
    made.add_argument("--steps", type=int, default=3, help="in which control bytes are counted")
    made.add_argument("--peers", type=int, default=8, help="processes that average and take secure steps")
    made.add_argument("--mib", type=int, default=64, help="size of their float32 vector in MiB")
    made.add_argument("--rounds", type=int, default=5, help="of each kind that count, after the first ones")
    return made.parse_args()


# ---- control bytes: members in virtual time, whose nodes count what they receive


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
        """See `Node`."""
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


if __name__ == "__main__":
    sys.exit(main())
