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

from benchmarks._strategy_round import CHUNK_BYTES, BenchPeer, round_id
from benchmarks._strategy_tasks import GLOBAL_BATCH
from minga.averaging.clocking.sample_quota import MemberPace, SampleQuotas, share_out
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Encoder
from minga.averaging.matchmaking.leader import GRACE_S
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.solver.flat import Prediction, predict
from minga.averaging.solver.planner import divide
from minga.planner.forecast import FORMING_TRIPS

MBIT: Final = 1e6 / 8
HOME_UP, HOME_DOWN, AUXILIARY = 20 * MBIT, 100 * MBIT, 1000 * MBIT
LATENCY_S: Final = 0.03
FIXED_S: Final = FORMING_TRIPS * 4 * LATENCY_S + GRACE_S
"""Seconds of a round besides transfer: round trips between homes, and the leader's grace for those that just stop."""
REPEATS: Final = 5


class CodecCost(NamedTuple):
    """Nanoseconds an element on one thread: encode a contribution, add it up, encode the mean, decode that."""

    encode: float
    add: float
    encode_mean: float
    decode_mean: float

    def seconds(self, senders: int, numel: int) -> float:
        """Of one round: what a sender, the auxiliary peer and then a receiver do, one after the other."""
        each = self.encode + senders * self.add + self.encode_mean + self.decode_mean
        return 1e-9 * each * numel


NO_COST: Final = CodecCost(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Clock:
    """How long things take for peers with these relative `speeds` at one kappa.

    Vectors of `numel` elements stand for those of a model with `parameters`. Speeds are in samples per second, and
    `batch_s` is what a global batch takes all peers together.
    """

    speeds: tuple[float, ...]
    kappa: float
    numel: int
    parameters: int
    cost: CodecCost = NO_COST
    fixed_s: float = FIXED_S

    @property
    def reference_s(self) -> float:
        """The transfer of a round of the synchronous float16 reference."""
        return self.transfer_s([2 * self.numel] * len(self.speeds), 2 * self.numel)

    @property
    def batch_s(self) -> float:
        """What a global batch takes all peers together."""
        return self.reference_s / self.kappa

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
        senders = tuple(sent > 0 for sent in up_bytes)
        return _transfer_s(senders, scale * max(up_bytes), scale * down_bytes)

    def round_s(self, up_bytes: Sequence[int], down_bytes: int) -> float:
        """All of a round that is not computing gradients."""
        senders = sum(sent > 0 for sent in up_bytes)
        return self.transfer_s(up_bytes, down_bytes) + self.cost.seconds(senders, self.parameters) + self.fixed_s


@lru_cache(maxsize=256)
def _transfer_s(senders: tuple[bool, ...], up_bytes: float, down_bytes: float) -> float:
    homes = tuple(PeerRates(HOME_UP, HOME_DOWN, sends=sends) for sends in senders)
    rates = SwarmRates((*homes, PeerRates(AUXILIARY, AUXILIARY, sends=False)))
    division = divide(rates, max(up_bytes, down_bytes))
    rising = predict(division, _with(rates, receives=False), up_bytes)
    falling = predict(division, _with(rates, sends=False), down_bytes)
    return max(
        max(sent / peer.upload, received / peer.download)  # type: ignore[operator]
        for peer, sent, received in zip(
            rates.peers, _sum(rising, falling, "upload_bytes"), _sum(rising, falling, "download_bytes"), strict=True
        )
    )


def _with(rates: SwarmRates, **changes: bool) -> SwarmRates:
    return SwarmRates(tuple(replace(peer, **changes) for peer in rates.peers))


def _sum(first: Prediction, second: Prediction, way: str) -> list[float]:
    return [a + b for a, b in zip(getattr(first, way), getattr(second, way), strict=True)]


# ---- codecs


def codec_cost(peer: BenchPeer, step: int) -> CodecCost:
    """What the codecs and the sketch cost in the round of `step`, on numbers like a gradient's: medians of five."""
    replica = peer.copy.replica
    vector = torch.randn(replica.vector.numel, generator=torch.Generator().manual_seed(1)) * 1e-3
    values = replica.project(vector, 1, step, round_id(step))
    assert values is not None
    layout = peer.vectors.layout_of(step)
    encoder, whole = Encoder(values, 1), replica.vector.numel
    project = _seconds(lambda: replica.project(vector, 1, step, round_id(step)))
    encode, bodies = _timed(lambda: _encoded(layout, encoder))
    total = torch.zeros(layout.total)
    add = _seconds(lambda: _added(layout, bodies, total))
    mean = values.clone()
    encode_mean, means = _timed(lambda: _encoded_mean(layout, mean))
    decode = _seconds(lambda: _decoded(layout, means, mean))
    expand = _seconds(lambda: replica.expand(mean, step, counted_in=None))
    replica.left_out.forget()
    parts = (encode + project, add, encode_mean, decode + expand)
    return CodecCost(*(round(1e9 * part / whole, 4) for part in parts))


def _encoded(layout: VectorLayout, encoder: Encoder) -> list[bytes]:
    chunks = layout.chunks(0, layout.total, CHUNK_BYTES)
    return [bytes(encoder.encode(chunk, memoryview(bytearray(chunk.upload_bytes)))) for chunk in chunks]


def _added(layout: VectorLayout, bodies: Sequence[bytes], total: torch.Tensor) -> None:
    for chunk, body in zip(layout.chunks(0, layout.total, CHUNK_BYTES), bodies, strict=True):
        chunk.codecs.upload.decode_add(body, total[chunk.start : chunk.stop], 1.0)


def _encoded_mean(layout: VectorLayout, mean: torch.Tensor) -> list[bytes]:
    bodies = []
    for chunk in layout.chunks(0, layout.total, CHUNK_BYTES):
        room = bytearray(chunk.codecs.download.max_encoded_bytes(chunk.numel))
        size = chunk.codecs.download.encode(mean[chunk.start : chunk.stop], room, seed=1)
        bodies.append(bytes(room[:size]))
    return bodies


def _decoded(layout: VectorLayout, bodies: Sequence[bytes], mean: torch.Tensor) -> None:
    for chunk, body in zip(layout.chunks(0, layout.total, CHUNK_BYTES), bodies, strict=True):
        chunk.codecs.download.decode(body, mean[chunk.start : chunk.stop])


def _timed(work: Callable[[], list[bytes]]) -> tuple[float, list[bytes]]:
    return _seconds(work), work()


def _seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return median(taken)
