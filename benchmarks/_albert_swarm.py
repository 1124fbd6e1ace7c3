"""The setups of `benchmarks._albert_model` as swarms in the virtual world, and what their steps took."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from benchmarks._albert_model import (
    GUESTS,
    SAMPLES_PER_SECOND,
    TARGET_BATCH_SIZE,
    VECTOR_BYTES,
    Setup,
    Strategy,
)
from minga.averaging.solver.flat import divide_equally
from minga.averaging.solver.planner import divide
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.classification import SAMPLES, Classification
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.simulation.virtual_time import run_virtual
from minga.training.replica.replica import Replica

MICRO_BATCH = 4
LATENCY_S = 0.01
WATCHED = "peer-0"


@dataclass
class Step:
    """One step as the members saw it; times in seconds, averaged over them except for `applied_s` (of one member)."""

    members: int = 0
    applied_s: float = 0.0
    waited_s: list[float] = field(default_factory=list)
    averaged_s: list[float] = field(default_factory=list)
    samples: int = 0


@dataclass(frozen=True)
class Extent:
    """How long to simulate: `steps` that count, after `warm_up` (at least 1) that do not, and `scale`, by how much
    vector and line rates are smaller than they are said to be.
    """

    steps: int
    warm_up: int
    scale: float

    @property
    def warm_up_again(self) -> int:
        """Steps that do not count after peers came or went: only the newcomers' rates are unknown then."""
        return min(self.warm_up, 2)


@dataclass
class Told:
    """What became of one run: its steps by number, the held-out loss after each, and whether all stayed equal."""

    steps: dict[int, Step]
    losses: dict[int, float]
    all_equal: bool
    extent: Extent

    def regular(self, setup: Setup) -> Iterator[tuple[float, Step]]:
        """Step times and steps of this setup, but for the first ones and those in which peers came or went."""
        since, warm_up = 0, self.extent.warm_up
        for before, number in pairwise(sorted(self.steps)):
            first, second = self.steps[before], self.steps[number]
            if first.members != second.members:
                since, warm_up = 0, self.extent.warm_up_again
            else:
                since += 1
                if since >= warm_up and second.members == setup.members:
                    yield second.applied_s - first.applied_s, second

    def longest_change_s(self) -> float:
        """The longest step in which peers came or went; 0 if none ever did."""
        pairs = [(self.steps[a], self.steps[b]) for a, b in pairwise(sorted(self.steps))]
        return max((b.applied_s - a.applied_s for a, b in pairs if a.members != b.members), default=0.0)


class LadenReplica(Replica):
    """A small classifier, and as many parameters without a gradient as bring the vector to its length."""

    def __init__(self, spec: RunSpec, numel: int) -> None:
        self.task = Classification(spec)
        self.losses: dict[int, float] = {}
        model = self.task.model
        load = torch.nn.Parameter(torch.zeros(numel - sum(p.numel() for p in model.parameters())))
        model.register_parameter("load", load)
        super().__init__(spec, torch.optim.SGD(model.parameters(), lr=0.5), model=model)

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """See `Replica`."""
        super().apply(mean, step)
        self.losses[step] = self.task.held_out_loss()


class FullBatch:
    """Gradients of the mean loss over all samples: what a micro-batch holds does not depend on who computes it.

    Peers at the same step have the same parameters (`Told.all_equal`), so each gradient is computed once.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[torch.Tensor | None]] = {}

    def __call__(self, peer: SimulatedPeer, samples: int) -> None:
        """Set the gradients on the peer's model."""
        del samples
        replica = peer.replica
        assert isinstance(replica, LadenReplica)
        parameters = list(replica.task.model.parameters())
        if replica.step not in self._known:
            replica.task.backward(range(SAMPLES))
            self._known[replica.step] = [p.grad for p in parameters]
        for parameter, gradient in zip(parameters, self._known[replica.step], strict=True):
            parameter.grad = gradient


def spec_of(strategy: Strategy) -> RunSpec:
    """The run spec: the same for all setups."""
    return RunSpec.from_mapping(
        {
            "name": f"albert setups {strategy}",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "training": {"target_batch_size": TARGET_BATCH_SIZE, "strategy": strategy, "seed": 3},
            "averaging": {"codec": "float16"},
            "state": {"digest_every": 1},
            "checkpoints": {"every_steps": 0},
        }
    ).published({})


def run(setup: Setup, strategy: Strategy, extent: Extent, *, alternating: bool = False) -> Told:
    """Take the steps; if `alternating` as many more with the part-time trainers, and a few without them again."""
    scale, again = extent.scale, extent.warm_up_again
    spec, gradient = spec_of(strategy), FullBatch()
    replicas: list[LadenReplica] = []
    swarms: list[Swarm] = []

    def make_replica(spec: RunSpec) -> Replica:
        replicas.append(LadenReplica(spec, int(VECTOR_BYTES / 2 / scale)))
        return replicas[-1]

    async def live() -> None:
        plans = divide if setup.adaptive else divide_equally
        swarm = Swarm(spec, seed=1, make_replica=make_replica, gradient=gradient, divide=plans)
        swarms.append(swarm)
        try:
            for rate in setup.trainers:
                _add(swarm, rate, scale)
            for rate in setup.auxiliaries:
                _add(swarm, rate, scale, auxiliary=True)
            await swarm.run_until_step(extent.warm_up + extent.steps, limit_s=3600)
            if alternating:
                guests = [_add(swarm, rate, scale) for rate in GUESTS]
                await _run_with(swarm, setup.members + len(guests), again + extent.steps)
                for guest in guests:
                    await guest.session.close("off")
                await _run_with(swarm, setup.members, again + 1)
            await asyncio.sleep(1.0)  # the events of a step come a moment after it
        finally:
            await swarm.close()

    _spare_the_collector()
    run_virtual(live(), limit_s=36_000)
    swarm = swarms[0]
    return Told(_steps(swarm), dict(replicas[0].losses), not swarm.log.of("member.diverged"), extent)


def _add(swarm: Swarm, megabits: float, scale: float, *, auxiliary: bool = False) -> SimulatedPeer:
    rate = megabits * 1e6 / 8 / scale
    return swarm.add(
        HostSettings(up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=LATENCY_S),
        None if auxiliary else TrainerSettings(MICRO_BATCH, MICRO_BATCH / SAMPLES_PER_SECOND),
        auxiliary=auxiliary,
    )


async def _run_with(swarm: Swarm, members: int, steps: int) -> None:
    """Take steps until `steps` of them had so many members."""
    begun = swarm.peers[WATCHED].replica.step
    while sum(s.members == members for number, s in _steps(swarm).items() if number > begun) < steps:
        await swarm.run_until_step(swarm.peers[WATCHED].replica.step + 1, limit_s=3600, peers=[WATCHED])


def _steps(swarm: Swarm) -> dict[int, Step]:
    steps: dict[int, Step] = defaultdict(Step)
    for name, event in swarm.log.events:
        fields: Mapping[str, Any] = event.fields
        if event.kind == "round.begun" and fields["samples"]:
            steps[fields["step"] + 1].waited_s.append(fields["waited_s"])
            steps[fields["step"] + 1].samples += fields["samples"]
        elif event.kind == "round.reduced":
            steps[fields["step"] + 1].averaged_s.append(fields["seconds"])
        elif event.kind == "step.applied" and name == WATCHED:
            steps[fields["step"]].members, steps[fields["step"]].applied_s = fields["members"], event.time
    return {number: step for number, step in steps.items() if step.members}


def _spare_the_collector() -> None:
    """A simulation makes few cycles; looking for them at every turn costs a third of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
