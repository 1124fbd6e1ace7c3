"""The virtual clock of `benchmarks.strategies`: how long rounds and batches take on the links that people have.

A round of encoded bytes takes as long as the project's own planner divides and predicts it, for the model that the
small one stands for. The peers' speeds are set such that a global batch takes 1 / kappa times as long as a round of the
synchronous float16 reference. To each round is added what forming it takes, and the time of the codecs, which is
measured alone, on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Final, NamedTuple

import torch

from benchmarks._strategy_tasks import GLOBAL_BATCH
from minga.averaging.clocking.sample_quota import MemberPace, SampleQuotas, share_out
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Encoder
from minga.averaging.matchmaking.leader import GRACE_S
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.solver.flat import predict
from minga.averaging.solver.planner import divide
from minga.planner.forecast import FORMING_TRIPS
from minga.training.replica.replica import Replica

MBIT: Final = 1e6 / 8
HOME_UP, HOME_DOWN, AUXILIARY = 20 * MBIT, 100 * MBIT, 1000 * MBIT
LATENCY_S: Final = 0.03
FIXED_S: Final = FORMING_TRIPS * 4 * LATENCY_S + GRACE_S
"""Seconds of a round besides transfer: round trips between homes, and the leader's grace for those that just stop."""
CHUNK_BYTES: Final = 256 << 10
REPEATS: Final = 5


class CodecCost(NamedTuple):
    """Nanoseconds an element on one thread: encode a contribution, add it up, encode the mean, decode that."""

    encode: float = 0.0
    add: float = 0.0
    encode_mean: float = 0.0
    decode_mean: float = 0.0

    def seconds(self, senders: int, numel: int) -> float:
        """Of one round: what a sender, the auxiliary peer and then a receiver do, one after the other."""
        each = self.encode + senders * self.add + self.encode_mean + self.decode_mean
        return 1e-9 * each * numel


@dataclass(frozen=True)
class Clock:
    """How long things take for peers with these relative `speeds` at one kappa.

    Vectors of `numel` elements stand for those of a model with `parameters`.
    """

    speeds: tuple[float, ...]
    kappa: float
    numel: int
    parameters: int
    cost: CodecCost = CodecCost()  # noqa: RUF009

    @property
    def batch_s(self) -> float:
        """What a global batch takes all peers together: by kappa, and a round of the synchronous float16 reference."""
        return self.transfer_s([2 * self.numel] * len(self.speeds), 2 * self.numel) / self.kappa

    def samples_per_s(self) -> list[float]:
        """The speed of each peer."""
        return [GLOBAL_BATCH / self.batch_s * speed / sum(self.speeds) for speed in self.speeds]

    def quotas(self, samples: int, micro_batches: Sequence[int]) -> SampleQuotas:
        """How many samples each peer computes for a step of so many, and the seconds that takes, as leaders choose."""
        pairs = zip(self.samples_per_s(), micro_batches, strict=True)
        return share_out(samples, [MemberPace(0, size, size / speed, size / speed) for speed, size in pairs])

    def transfer_s(self, up_bytes: Sequence[int], down_bytes: int) -> float:
        """The transfer of a round in which each peer sends so many encoded bytes, and gets `down_bytes` back."""
        scale = self.parameters / self.numel
        return _transfer_s(tuple(sent > 0 for sent in up_bytes), scale * max(up_bytes), scale * down_bytes)

    def round_s(self, up_bytes: Sequence[int], down_bytes: int) -> float:
        """All of a round that is not computing gradients."""
        senders = sum(sent > 0 for sent in up_bytes)
        return self.transfer_s(up_bytes, down_bytes) + self.cost.seconds(senders, self.parameters) + FIXED_S


@lru_cache(maxsize=256)
def _transfer_s(senders: tuple[bool, ...], up_bytes: float, down_bytes: float) -> float:
    homes = [PeerRates(HOME_UP, HOME_DOWN, sends=sends) for sends in senders]
    peers = (*homes, PeerRates(AUXILIARY, AUXILIARY, sends=False))
    division = divide(SwarmRates(peers), max(up_bytes, down_bytes))
    rising = predict(division, SwarmRates(tuple(replace(peer, receives=False) for peer in peers)), up_bytes)
    falling = predict(division, SwarmRates(tuple(replace(peer, sends=False) for peer in peers)), down_bytes)
    busy_s = []
    for i, peer in enumerate(peers):
        sent = rising.upload_bytes[i] + falling.upload_bytes[i]
        received = rising.download_bytes[i] + falling.download_bytes[i]
        busy_s += [sent / peer.upload, received / peer.download]  # type: ignore[operator]
    return max(busy_s)


def codec_cost(replica: Replica, layout: VectorLayout, step: int) -> CodecCost:
    """What codecs and sketch cost in the round of `step`, on numbers like a gradient's: medians of five."""
    vector = torch.randn(replica.vector.numel, generator=torch.Generator().manual_seed(1)) * 1e-3
    values = replica.project(vector, 1, step, round_id(step))
    assert values is not None
    encoder, mean, total = Encoder(values, 1), values.clone(), torch.zeros(layout.total)
    chunks = layout.chunks(0, layout.total, CHUNK_BYTES)

    def encode() -> list[bytes]:
        return [bytes(encoder.encode(chunk, memoryview(bytearray(chunk.upload_bytes)))) for chunk in chunks]

    def encode_mean() -> list[bytes]:
        bodies = []
        for chunk in chunks:
            room = bytearray(chunk.codecs.download.max_encoded_bytes(chunk.numel))
            size = chunk.codecs.download.encode(mean[chunk.start : chunk.stop], room, seed=1)
            bodies.append(bytes(room[:size]))
        return bodies

    contributions, means = encode(), encode_mean()

    def add() -> None:
        for chunk, body in zip(chunks, contributions, strict=True):
            chunk.codecs.upload.decode_add(body, total[chunk.start : chunk.stop], 1.0)

    def decode_mean() -> None:
        for chunk, body in zip(chunks, means, strict=True):
            chunk.codecs.download.decode(body, mean[chunk.start : chunk.stop])
        replica.expand(mean, step, counted_in=None)

    def encode_all() -> None:
        replica.project(vector, 1, step, round_id(step))
        encode()

    seconds = [_seconds(work) for work in (encode_all, add, encode_mean, decode_mean)]
    replica.left_out.forget()
    return CodecCost(*(round(1e9 * each / replica.vector.numel, 4) for each in seconds))


def round_id(step: int) -> str:
    """The id of the round of a step; each step has one round here."""
    return f"{step:032x}"


def _seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return median(taken)
