"""One run of `benchmarks.strategies`: peers in turn, in one process, and a record of each round.

Contributions go as real bytes to one auxiliary peer, and its mean comes back. Strategies, sketches, codecs and
residuals are those of minga. What stands here is the order in which a peer calls them (`training/bridge/gradient_port`,
`averaging/allreduce/round`) and the sum of the aggregator (`allreduce/reducer`), which a test compares with a round
over a network, bit by bit.

Methods whose peers wait while a round runs do not depend on how long that takes: they are trained once, and the clock
is replayed for each kappa. Others are trained with the flights that their rounds take at one kappa.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from benchmarks._strategy_clock import CHUNK_BYTES, Clock, codec_cost, round_id
from benchmarks._strategy_methods import Method
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Subject, run_spec
from minga import RunSpec
from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Encoder, Residual, RoundVectors
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.planning.best_contributor import best_contributor
from minga.averaging.strategy_choice import StrategyChoice, round_batch_range
from minga.core.errors import NonFiniteError
from minga.network.interface import PeerId
from minga.recipes.interface import Batch
from minga.training.strategy.interface import Strategy

EVALUATIONS: Final = 40
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What one run is of. `kappa` is None for methods whose mathematics do not depend on it."""

    task: str
    method: Method
    seed: int
    speeds: tuple[float, ...]
    samples: int
    kappa: float | None = None
    evaluations: int = EVALUATIONS

    @property
    def batch(self) -> int:
        """Samples after which a round closes: with fragments the part of the target batch that belongs to one."""
        return GLOBAL_BATCH * self.method.batches // self.method.facts.fragments

    @property
    def warm_samples(self) -> int:
        """Those of the first, synchronous steps."""
        return round(self.method.warm * self.samples / GLOBAL_BATCH) * GLOBAL_BATCH

    @property
    def rounds(self) -> int:
        """Rounds of the whole run."""
        return self.warm_samples // GLOBAL_BATCH + math.ceil((self.samples - self.warm_samples) / self.batch)

    def subject(self, folder: Path) -> Subject:
        """The task with this run's spec; `folder` keeps the files of all tasks."""
        task, rounds = TASKS[self.task], math.ceil(self.samples / self.batch)
        tables = self.method.tables(self.warm_samples)
        spec = run_spec(task, self.seed, rounds, GLOBAL_BATCH * self.method.batches, tables, self.method.rate)
        return Subject(task, spec, folder / f"data-{task.name}")


class Run(ABC):
    """The peers of one cell, what they have done so far, and the micro-batch of each; `model` is what they share."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.subject, self.samples = cell, cell.subject(folder), 0
        self.model = self.subject.new_model()
        numel = self.subject.replica_of(self.subject.new_model()).vector.numel
        self.clock = Clock(cell.speeds, cell.kappa or 1.0, numel, TASKS[cell.task].parameters)
        share, most = GLOBAL_BATCH / sum(cell.speeds), GLOBAL_BATCH // len(cell.speeds)
        self.sizes = [max(1, min(most, math.floor(share * speed))) for speed in cell.speeds]

    def train(self) -> Record:
        """Train to the end; the record of it."""
        every = due = self.cell.samples / self.cell.evaluations
        rounds, curve = [], [self._evaluated(0)]
        for each in self.rounds():
            rounds.append(each)
            self.samples += each["samples"]
            if self.samples >= due or self.samples >= self.cell.samples:
                curve.append(self._evaluated(len(rounds)))
                due = self.samples + every
        return {"numel": self.clock.numel, "cost": list(self.clock.cost), "rounds": rounds, "curve": curve}

    @abstractmethod
    def rounds(self) -> Iterator[Record]:
        """The samples and encoded bytes of each round, as soon as its mean is taken up, until there are enough."""

    def _evaluated(self, rounds: int) -> Record:
        loss = self.subject.heldout_loss(self.model)
        return {"round": rounds, "samples": self.samples, "loss": round(loss, 6)}


# ---- one peer, and the sum of what peers give


class Sealed(NamedTuple):
    """What a peer gives to a round, for so many samples. `vector` is None, and `weight` 0, where it only receives."""

    peer: str
    vector: torch.Tensor | None
    samples: int
    weight: int
    residual: Residual | None


class BenchPeer:
    """One peer: its model, its strategy, its data, and how fast it computes (samples per second).

    `samples` are those that it computed since its last round.
    """

    def __init__(self, subject: Subject, name: str, speed: float, micro_batch: int) -> None:
        self.name, self.speed, self.micro_batch, self.samples = name, speed, micro_batch, 0
        self.recipe, self.model = subject.recipe, subject.new_model()
        self.replica = subject.replica_of(self.model)
        self._batches: Iterator[Batch] = subject.batches(name, micro_batch)
        self.begin(subject.spec)

    def begin(self, spec: RunSpec) -> None:
        """Have the strategy of this round begin, or go on from parameters that all share; see `GradientPort.change`."""
        replica, averaging = self.replica, spec.averaging
        unit, _ = round_batch_range(spec)
        choice = StrategyChoice.of(spec.at(self.round))
        self.strategy: Strategy = choice.kind(threading.Condition(), unit=unit, settings=choice.settings)
        kept = self.strategy.facts.keeps_uncounted
        replica.hand_over(choice.name, keeps_uncounted=kept)
        self.strategy.begin(replica)
        decay = averaging.residual_decay
        self.vectors = RoundVectors(replica.layout_of, replica.vector.new, keeps_uncounted=kept, decay=decay)

    @property
    def round(self) -> int:
        """The round that the peer is in, from 0."""
        return self.replica.step

    def compute(self, micro_batches: int = 1) -> None:
        """Train on so many micro-batches."""
        for _ in range(micro_batches):
            loss = self.recipe.total_loss(self.model, next(self._batches))
            loss.backward()
            self.strategy.note_loss(loss.item())
            if self.strategy.micro_batch(self.micro_batch):
                self.strategy.count(self.micro_batch)
            self.replica.zero_grad()
            self.samples += self.micro_batch

    def seal(self, *, gives: bool, equal: bool) -> Sealed:
        """Close the round: what the peer gives to it, if it does; of as much weight as any other, or by samples."""
        self.strategy.close()
        step = self.round
        try:
            vector, weight = self.strategy.contribution()
        except NonFiniteError:
            vector, weight = None, 0
        samples, self.samples = self.samples if weight else 0, 0
        if gives:
            vector = self.replica.project(vector, weight, step, round_id(step))
        if not gives or vector is None:
            return Sealed(self.name, None, samples, 0, None)
        return Sealed(self.name, vector, samples, 1 if equal else weight, self.vectors.residual(step))

    def absorb(self, mean: torch.Tensor, contributors: int, samples: int, *, gave: bool) -> None:
        """Take up the mean of the round, which is one of so many contributions, of so many samples."""
        step = self.round
        fate = ContributionFate.COUNTED if gave else ContributionFate.ABSENT
        whole = self.replica.expand(mean, step, counted_in=round_id(step) if gave else None)
        self.strategy.note_round(contributors, samples)
        self.strategy.absorb(step + 1, whole, fate)


class Result(NamedTuple):
    """The mean of a round, whose bytes all receive alike, and the encoded bytes that each of the peers sent."""

    mean: torch.Tensor
    up_bytes: list[int]
    down_bytes: int


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
        if encoder is not None:
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


# ---- all peers


class Flight(NamedTuple):
    """A round under way: what was given to it, what comes of it, and when that is there, in seconds."""

    given: list[Sealed]
    result: Result
    arrives_s: float

    def record(self, **when: float) -> Record:
        """What is kept of the round."""
        samples = sum(each.samples for each in self.given)
        return {**when, "samples": samples, "up": self.result.up_bytes, "down": self.result.down_bytes}


class SwarmRun(Run):
    """Peers with minga's strategies."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        super().__init__(cell, folder)
        self.judge = self.subject.replica_of(self.model)
        pace = zip(self.clock.samples_per_s(), self.sizes, strict=True)
        self.peers = [BenchPeer(self.subject, f"peer {i}", *each) for i, each in enumerate(pace)]
        first, last = self.peers[0], cell.rounds - 1
        cost = codec_cost(first.replica, first.vectors.layout_of(last), last)
        self.clock = replace(self.clock, cost=cost)

    def _evaluated(self, rounds: int) -> Record:
        shared = self.peers[0].strategy.shared_tensors()
        self.judge.put({name: tensor for name, tensor in shared.items() if name.startswith("model/")})
        return super()._evaluated(rounds)

    def rounds(self) -> Iterator[Record]:
        """See `Run`."""
        if warm := self.cell.warm_samples:
            yield from self._waiting(GLOBAL_BATCH, warm)
            for peer in self.peers:
                peer.begin(self.subject.spec)
        whole = self._waiting(self.cell.batch, self.cell.samples)
        yield from self._overlapped() if self.cell.method.is_overlapped else whole

    def _waiting(self, batch: int, until: int) -> Iterator[Record]:
        """Rounds one after the other; compute time is noted in global batches."""
        quotas = self.clock.quotas(batch, self.sizes)
        while self.samples < until:
            for peer, samples in zip(self.peers, quotas.samples, strict=True):
                peer.compute(samples // peer.micro_batch)
            flight = self._fly(0.0)
            for index in range(len(self.peers)):
                self._absorb(index, flight)
            yield flight.record(batches=quotas.seconds / self.clock.batch_s)

    def _overlapped(self) -> Iterator[Record]:
        """Rounds beside computing, by a clock of events: the ends of micro-batches, and arrivals of means. It begins at
        0 with the first of them.
        """
        peers, batch, now = self.peers, self.cell.batch, 0.0
        limits = self.clock.quotas(batch, self.sizes).samples
        ends: list[float | None] = [peer.micro_batch / peer.speed for peer in peers]
        flight: Flight | None = None
        waiting: set[int] = set()  # for the mean that is under way
        while self.samples < self.cell.samples:
            times = [end for end in ends if end is not None]
            if flight is not None and any(ends[i] is None for i in waiting):
                times.append(max(now, flight.arrives_s))
            now = min(times)
            for index, peer in enumerate(peers):
                if (end := ends[index]) is not None and end <= now * (1 + 1e-12):
                    peer.compute()
                    ends[index] = None
                if ends[index] is None and index in waiting and flight is not None and flight.arrives_s <= now:
                    self._absorb(index, flight)
                    waiting.discard(index)
            if flight is not None and not waiting:
                yield flight.record(at_s=flight.arrives_s)
                flight = None
            if flight is None and sum(peer.samples for peer in peers) >= batch:
                flight = self._fly(now)
                waiting = set(range(len(peers)))
            for index, peer in enumerate(peers):
                stops = flight is not None and peer.samples >= peer.strategy.most_windows * limits[index]
                if ends[index] is None and not stops:
                    ends[index] = now + peer.micro_batch / peer.speed

    def _fly(self, now: float) -> Flight:
        """All peers give, or the one with the best score, but in the last round."""
        best: str | None = None
        step, facts = self.peers[0].round, self.peers[0].strategy.facts
        is_last = self.samples + self.cell.batch >= self.cell.samples
        if facts.contributors == "best" and not is_last:
            scores = {PeerId(peer.name): peer.strategy.score for peer in self.peers}
            best = best_contributor(self.subject.spec.run_id, step, scores)
        equal = best is not None or facts.weights == "equal"
        given = [peer.seal(gives=best in (None, peer.name), equal=equal) for peer in self.peers]
        result = reduce(self.peers[0].vectors.layout_of(step), step, given)
        return Flight(given, result, now + self.clock.round_s(result.up_bytes, result.down_bytes))

    def _absorb(self, index: int, flight: Flight) -> None:
        contributors = sum(each.weight > 0 for each in flight.given)
        samples = sum(each.samples for each in flight.given)
        self.peers[index].absorb(flight.result.mean, contributors, samples, gave=flight.given[index].weight > 0)


# ---- the same without minga


class DilocoRun(Run):
    """DiLoCo (arXiv:2311.08105) in plain torch: inner AdamW on each worker, outer Nesterov SGD on the mean of what they
    moved. Task, data, schedule and clock are those of `SwarmRun`; it knows no codecs, and their time is left out.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        super().__init__(cell, folder)
        self.workers = [self.subject.new_model() for _ in cell.speeds]
        self.data = [self.subject.batches(f"peer {i}", size) for i, size in enumerate(self.sizes)]
        outer = cell.method.spec["strategy"]["local"]
        rate, momentum = outer["outer_learning_rate"], outer["outer_momentum"]
        self.outer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum, nesterov=True)
        self.inner = [self._adamw(model) for model in self.workers]

    def rounds(self) -> Iterator[Record]:
        """See `Run`: a float32 of each parameter goes up and comes down."""
        quotas = self.clock.quotas(self.cell.batch, self.sizes)
        whole = sum(parameter.nbytes for parameter in self.model.parameters())
        round_index = 0
        while self.samples < self.cell.samples:
            for place, samples in enumerate(quotas.samples):
                self._train_alone(place, round_index, samples // self.sizes[place])
            for shared, *own in zip(*(model.parameters() for model in (self.model, *self.workers)), strict=True):
                moved = zip(quotas.samples, own, strict=True)
                shared.grad = sum(n * (shared.detach() - each.detach()) for n, each in moved) / sum(quotas.samples)
            self.outer.step()
            yield {
                "batches": quotas.seconds / self.clock.batch_s,
                "samples": sum(quotas.samples),
                "up": [whole] * len(self.workers),
                "down": whole,
            }
            round_index += 1

    def _adamw(self, model: nn.Module) -> torch.optim.AdamW:
        settings, parameters = self.subject.spec.optimizer, list(model.parameters())
        decayed = {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": settings.weight_decay}
        others = {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0}
        return torch.optim.AdamW([decayed, others], betas=settings.betas, eps=settings.epsilon)

    def _train_alone(self, place: int, round_index: int, steps: int) -> None:
        """The inner steps of one worker in a round, from the shared parameters on, at the rate of that round."""
        model, optimizer, settings = self.workers[place], self.inner[place], self.subject.spec.optimizer
        model.load_state_dict(self.model.state_dict())
        warmup, total, last = settings.warmup_steps, settings.total_steps, settings.final_learning_rate
        falls = last + (settings.learning_rate - last) * (total - round_index) / max(1, total - warmup)
        rises = settings.learning_rate * (round_index + 1) / max(1, warmup)
        for group in optimizer.param_groups:
            group["lr"] = rises if round_index < warmup else falls
        for _ in range(steps):
            optimizer.zero_grad()
            self.subject.recipe.total_loss(model, next(self.data[place])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm or math.inf)
            optimizer.step()


def run_cell(cell: Cell, folder: Path) -> Record:
    """The record of one run, on one thread."""
    torch.set_num_threads(1)
    return (DilocoRun if cell.method.is_plain else SwarmRun)(cell, folder).train()
