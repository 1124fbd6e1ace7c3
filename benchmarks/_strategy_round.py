"""The rounds of `benchmarks.strategies`: real contributions as real bytes to one auxiliary peer, and its mean back.

Strategies, sketches, codecs and residuals are those of minga. What stands here is the order in which a peer calls them
(`training/bridge/gradient_port`, `averaging/allreduce/round`) and the sum of the aggregator (`allreduce/reducer`),
which a test compares with a round over a network, bit by bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from benchmarks._strategy_tasks import Subject
from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Encoder, LossySettings, Residual, RoundVectors
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.strategy_choice import StrategyChoice, StrategyFacts, round_batch_range
from minga.core.errors import NonFiniteError
from minga.recipes.interface import Batch, StreamPosition
from minga.training.strategy.interface import Strategy

CHUNK_BYTES: Final = 256 << 10


class Sealed(NamedTuple):
    """What a peer gives to a round, for so many samples. `vector` is None, and `weight` 0, where it only receives."""

    peer: str
    vector: torch.Tensor | None
    samples: int
    weight: int
    residual: Residual | None


@dataclass
class Result:
    """The mean of a round, whose bytes all receive alike, and the encoded bytes that each of the peers sent."""

    mean: torch.Tensor
    up_bytes: list[int]
    down_bytes: int


class BenchPeer:
    """One peer: its copy of the model, its strategy, its data, and how fast it computes (samples per second).

    `samples` are those that it computed since its last round, `steps` the micro-batches.
    """

    def __init__(self, subject: Subject, name: str, speed: float, micro_batch: int) -> None:
        self.name, self.speed, self.micro_batch = name, speed, micro_batch
        self.samples = self.steps = 0
        self.subject, self.copy = subject, subject.new_copy()
        choice = StrategyChoice.of(subject.spec)
        unit, _ = round_batch_range(subject.spec)
        self.strategy: Strategy = choice.kind(threading.Condition(), unit=unit, settings=choice.settings)
        self.facts: StrategyFacts = self.strategy.facts
        self.strategy.begin(self.copy.replica)
        replica = self.copy.replica
        averaging, keeps = subject.spec.averaging, self.facts.keeps_uncounted
        lossy = LossySettings(averaging.residual_decay, averaging.warmup_rounds)
        self.vectors = RoundVectors(replica.layout_of, replica.vector.new, lossy, keeps_uncounted=keeps)
        self._batches: Iterator[Batch] = subject.recipe.batches(
            subject.files, StreamPosition(name.encode().hex().rjust(64, "0")), micro_batch
        )

    @property
    def round(self) -> int:
        """The round that the peer is in, from 0."""
        return self.copy.replica.step

    def compute(self, micro_batches: int = 1) -> None:
        """Train on so many micro-batches."""
        for _ in range(micro_batches):
            loss = self.subject.recipe.total_loss(self.copy.model, next(self._batches))
            loss.backward()  # type: ignore[no-untyped-call]
            self.strategy.note_loss(loss.item())
            if self.strategy.micro_batch(self.micro_batch):
                self.strategy.count(self.micro_batch)
            self.copy.replica.zero_grad()
            self.samples += self.micro_batch
            self.steps += 1

    def seal(self, *, gives: bool = True, equal: bool = False) -> Sealed:
        """Close the round: what the peer gives to it, if it does; of as much weight as any other, or by samples."""
        self.strategy.close()
        step = self.round
        try:
            vector, samples = self.strategy.contribution()
        except NonFiniteError:
            vector, samples = None, 0
        if gives:
            vector = self.copy.replica.project(vector, samples, step, round_id(step))
        if not gives or vector is None:
            return Sealed(self.name, None, samples, 0, None)
        return Sealed(self.name, vector, samples, 1 if equal else samples, self.vectors.residual(step))

    def absorb(self, mean: torch.Tensor, contributors: int, *, gave: bool) -> None:
        """Take up the mean of the round, which is one of so many contributions."""
        step = self.round
        fate = ContributionFate.COUNTED if gave else ContributionFate.ABSENT
        whole = self.copy.replica.expand(mean, step, counted_in=round_id(step) if gave else None)
        self.strategy.note_contributors(contributors)
        self.strategy.absorb(step + 1, whole, fate)

    def begin_with(self, donor: BenchPeer) -> int:
        """Take over the shared state of another peer, as a newcomer does; the bytes of that state."""
        snapshot = donor.copy.replica.capture()
        self.copy.replica.restore(snapshot)
        shared = {entry.name: tensor for entry, tensor in snapshot.named_tensors()}
        self.strategy.restored(shared, snapshot.step, None)
        return sum(tensor.numel() * tensor.element_size() for tensor in shared.values())


def round_id(step: int) -> str:
    """The id of the round of a step; each step has one round here."""
    return f"{step:032x}"


def reduce(layout: VectorLayout, step: int, sealed: Sequence[Sealed]) -> Result:
    """The round of `step`: what the auxiliary peer makes of these contributions. All of them are counted."""
    chunks = layout.chunks(0, layout.total, CHUNK_BYTES)
    mean, sent = torch.zeros(layout.total), [0] * len(sealed)
    encoders = [_encoder(each, RoundSeeds(layout.fingerprint, step, each.peer)) for each in sealed]
    for chunk in chunks:
        _add_all(chunk, encoders, mean[chunk.start : chunk.stop], sent)
    seeds = RoundSeeds(layout.fingerprint, step)
    down = sum(_encode_mean(chunk, mean[chunk.start : chunk.stop], seeds) for chunk in chunks)
    for encoder in encoders:
        if encoder is not None:
            encoder.settle([(chunk, True) for chunk in chunks], mean)
    return Result(mean, sent, down)


def _encoder(sealed: Sealed, seeds: RoundSeeds) -> Encoder | None:
    if sealed.vector is None:
        return None
    if sealed.residual is not None:
        return sealed.residual.seal(sealed.vector, sealed.weight, seeds.step, seeds)
    return Encoder(sealed.vector, sealed.weight, seeds=seeds)


def _add_all(chunk: Chunk, encoders: Sequence[Encoder | None], total: torch.Tensor, sent: list[int]) -> None:
    buffer = memoryview(bytearray(chunk.upload_bytes))
    weights = 0.0
    for index, encoder in enumerate(encoders):
        if encoder is None:
            continue
        body = encoder.encode(chunk, buffer)
        sent[index] += body.nbytes
        chunk.codecs.upload.decode_add(body, total, float(encoder.weight), limit=CONTRIBUTION_LIMIT)
        weights += encoder.weight
    total.div_(weights)


def _encode_mean(chunk: Chunk, mean: torch.Tensor, seeds: RoundSeeds) -> int:
    codec = chunk.codecs.download
    if codec.is_identity:
        return as_bytes(mean).nbytes
    buffer = memoryview(bytearray(chunk.download_bytes))
    body = buffer[: codec.encode(mean, buffer, seed=seeds.download(chunk))]
    codec.decode(body, mean)
    return body.nbytes
