"""One run of `benchmarks.strategies`: peers in turn, in one process, and a record of each round.

Methods whose peers wait while a round runs do not depend on how long that takes: they are trained once, and the clock
is replayed for each kappa. Others are trained with the flights that their rounds take at one kappa.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from benchmarks._strategy_clock import FIXED_S, Clock, codec_cost
from benchmarks._strategy_methods import Method
from benchmarks._strategy_round import BenchPeer, Result, Sealed, reduce
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Copy, Subject, run_spec
from minga.averaging.planning.best_contributor import best_contributor
from minga.averaging.strategy_choice import StrategyFacts, facts_of
from minga.network.interface import PeerId

CHURN_EVERY: Final = 10
"""With churn one peer dies, and one joins, in each so many rounds."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What one run is of. `kappa` is None for methods whose mathematics do not depend on it. A `bare` clock is without
    fixed costs and the time of codecs, as formulas are.
    """

    task: str
    method: Method
    seed: int
    speeds: tuple[float, ...]
    samples: int
    kappa: float | None = None
    churn: bool = False
    evaluations: int = 40
    bare: bool = False

    @property
    def batch(self) -> int:
        """Samples after which a round closes: with fragments the part of the target batch that belongs to one."""
        return self.target_batch // facts_of_method(self.method).fragments

    @property
    def target_batch(self) -> int:
        """Samples for which the whole model is averaged once."""
        return GLOBAL_BATCH * self.method.batches

    @property
    def rounds(self) -> int:
        """Rounds of the whole run."""
        return math.ceil(self.samples / self.batch)


class Flight(NamedTuple):
    """A round under way: what was given to it, what comes of it, and when that is there, in seconds.

    `steps` and `computed` samples are those of each peer since the round before.
    """

    given: list[Sealed]
    result: Result
    arrives_s: float
    steps: list[int]
    computed: list[int]

    @property
    def contributors(self) -> int:
        """How many gave something."""
        return sum(each.weight > 0 for each in self.given)


class Run:
    """The peers of one cell and what they have done so far."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, task = cell, TASKS[cell.task]
        spec = run_spec(task, cell.seed, cell.rounds, cell.target_batch, cell.method.spec)
        self.subject = Subject(task, spec, folder / f"data-{cell.task}")
        self.judge: Copy = self.subject.new_copy()
        numel = self.judge.replica.vector.numel
        fixed_s = 0.0 if cell.bare else FIXED_S
        self.clock = Clock(cell.speeds, cell.kappa or 1.0, numel, task.parameters, fixed_s=fixed_s)
        share = GLOBAL_BATCH / sum(cell.speeds)
        most = GLOBAL_BATCH // len(cell.speeds)
        self.sizes = [max(1, min(most, math.floor(share * speed))) for speed in cell.speeds]
        speeds = self.clock.samples_per_s()
        self.peers = [
            BenchPeer(self.subject, f"peer {i}", *pair) for i, pair in enumerate(zip(speeds, self.sizes, strict=True))
        ]
        if not cell.bare:
            self.clock = replace(self.clock, cost=codec_cost(self.peers[0], cell.rounds - 1))
        self.rounds: list[Record] = []
        self.curve: list[Record] = []
        self.samples = self.joined = 0

    @staticmethod
    def prepare(cell: Cell, folder: Path) -> None:
        """Make the files of the cell's task in `folder`, unless they are there."""
        task = TASKS[cell.task]
        Subject(task, run_spec(task, cell.seed, 1, GLOBAL_BATCH, {}), folder / f"data-{task.name}")

    @property
    def facts(self) -> StrategyFacts:
        """Of the strategy."""
        return self.peers[0].facts

    def train(self) -> Record:
        """Train to the end; the record of it."""
        self._evaluate()
        steps = self._overlapped() if self.facts.max_in_flight else self._waiting()
        due = self.cell.samples / self.cell.evaluations
        for _ in steps:
            if self.samples >= due or self.samples >= self.cell.samples:
                self._evaluate()
                due = self.samples + self.cell.samples / self.cell.evaluations
        return {
            "numel": self.clock.numel,
            "cost": list(self.clock.cost),
            "micro_batches": self.sizes,
            "rounds": self.rounds,
            "curve": self.curve,
        }

    # ---- peers that wait

    def _waiting(self) -> Iterator[None]:
        """Rounds one after the other; compute time is noted in global batches."""
        while self.samples < self.cell.samples:
            quotas = self.clock.quotas(self.cell.batch, self.sizes)
            for peer, samples in zip(self.peers, quotas.samples, strict=True):
                peer.compute(samples // peer.micro_batch)
            dead = self._victim()
            flight = self._fly(self._seal(dead), 0.0)
            for index in range(len(self.peers)):
                self._absorb(index, flight)
            self._note(flight, batches=quotas.seconds / self.clock.batch_s)
            if dead is not None:
                self._replace(dead)
            yield

    def _victim(self) -> int | None:
        if not self.cell.churn or len(self.rounds) % CHURN_EVERY != CHURN_EVERY // 2:
            return None
        return (len(self.rounds) // CHURN_EVERY + self.cell.seed) % len(self.peers)

    def _replace(self, dead: int) -> None:
        """A peer died in the round, and its samples with it; another one comes in its place for the next."""
        self.joined += 1
        gone = self.peers[dead]
        newcomer = BenchPeer(self.subject, f"newcomer {self.joined}", gone.speed, gone.micro_batch)
        fetched = newcomer.begin_with(self.peers[(dead + 1) % len(self.peers)])
        self.peers[dead] = newcomer
        self.rounds[-1]["joined"] = [dead, fetched]

    # ---- peers that go on

    def _overlapped(self) -> Iterator[None]:
        """Rounds beside computing, by a clock of events: the ends of micro-batches, and arrivals of means."""
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
                self._note(flight, at_s=flight.arrives_s)
                flight = None
                yield
            if flight is None and sum(peer.samples for peer in peers) >= batch:
                flight = self._fly(self._seal(None), now)
                waiting = set(range(len(peers)))
            for index, peer in enumerate(peers):
                stops = flight is not None and peer.samples >= peer.strategy.most_windows * limits[index]
                if ends[index] is None and not stops:
                    ends[index] = now + peer.micro_batch / peer.speed

    # ---- both

    def _seal(self, dead: int | None) -> list[Sealed]:
        """What each peer gives: all of them, or the one with the best score, but in the last round."""
        best: str | None = None
        is_last = self.samples + self.cell.batch >= self.cell.samples
        if self.facts.contributors == "best" and not is_last:
            scores = {PeerId(peer.name): peer.strategy.score for index, peer in enumerate(self.peers) if index != dead}
            best = best_contributor(self.subject.spec.run_id, self.peers[0].round, scores)
        equal = best is not None or self.facts.weights == "equal"
        return [
            Sealed(peer.name, None, 0, 0, None)
            if index == dead
            else peer.seal(gives=best in (None, peer.name), equal=equal)
            for index, peer in enumerate(self.peers)
        ]

    def _fly(self, given: list[Sealed], now: float) -> Flight:
        step = self.peers[0].round
        result = reduce(self.peers[0].vectors.layout_of(step), step, given)
        steps, computed = [peer.steps for peer in self.peers], [peer.samples for peer in self.peers]
        for peer in self.peers:
            peer.samples = peer.steps = 0
        arrives_s = now + self.clock.round_s(result.up_bytes, result.down_bytes)
        return Flight(given, result, arrives_s, steps, computed)

    def _absorb(self, index: int, flight: Flight) -> None:
        gave = flight.given[index].weight > 0
        self.peers[index].absorb(flight.result.mean, flight.contributors, gave=gave)

    def _note(self, flight: Flight, **when: float) -> None:
        samples = [n if each.samples else 0 for n, each in zip(flight.computed, flight.given, strict=True)]
        self.samples += sum(samples)
        steps = flight.steps if self.facts.payload != "gradient" else [1] * len(flight.steps)
        self.rounds.append(
            {
                **when,
                "samples": samples,
                "weights": [each.weight for each in flight.given],
                "computed": flight.computed,
                "steps": steps,
                "up": flight.result.up_bytes,
                "down": flight.result.down_bytes,
            }
        )

    def _evaluate(self) -> None:
        """Note the held-out loss of what peers share."""
        shared = self.peers[0].strategy.shared_tensors()
        model = {name: tensor for name, tensor in shared.items() if name.startswith("model/")}
        self.judge.replica.put(model)
        loss = self.subject.heldout_loss(self.judge.model)
        self.curve.append({"round": len(self.rounds), "samples": self.samples, "loss": round(loss, 6)})


@cache
def facts_of_method(method: Method) -> StrategyFacts:
    """The facts of its strategy, which its task does not change."""
    return facts_of(run_spec(TASKS["albert"], 0, 1, GLOBAL_BATCH * method.batches, method.spec))


def is_overlapped(method: Method) -> bool:
    """Whether rounds of the method run beside computing."""
    return facts_of_method(method).max_in_flight > 0


def run_cell(cell: Cell, folder: Path) -> Record:
    """The record of one run, on one thread."""
    torch.set_num_threads(1)
    return Run(cell, folder).train()
