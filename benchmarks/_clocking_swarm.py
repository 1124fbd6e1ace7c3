"""Swarms of the clocking benchmark in the virtual world: who is in them, and what their steps were made of."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from benchmarks._clocking_steps import SLOWER, Step
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.swarm import SimulatedPeer, Swarm, TrainerSettings
from minga.simulation.virtual_time import run_virtual
from minga.training.replica.replica import Replica

SLOWEST, FASTEST = 4.0, 32.0
UNIT = 256
"""Samples per second between which the speeds of trainers are drawn, log-uniformly; for target batch sizes above
`UNIT` they grow with these, as machines do."""
ROUND_TRIP_S = (0.005, 0.15)
UPLOAD_BYTES_PER_S, DOWNLOAD_BYTES_PER_S = (1.25e6, 6.25e6), (6.25e6, 25e6)
"""Home lines: 10 to 50 Mbit/s up and 50 to 200 Mbit/s down."""
JITTER = 0.05
NUMEL = 20_000
LARGEST_MICRO_BATCH = 1024
MICRO_BATCHES_A_STEP = 4
"""A peer's micro-batch is the largest power of two that it can do so many times while the others fill a step, up to
what memory allows: nobody who reads what a run's steps take would choose larger ones."""


@dataclass(frozen=True)
class Case:
    """Peers of one seed, their target batch size, and whether there is one more that is `SLOWER` than the median of
    them, but has micro-batches like theirs.
    """

    target_batch_size: int
    peers: int
    seed: int
    steps: int
    warm_up: int
    slow: bool = False
    strategy: str = "synchronous"


def trainers_of(case: Case) -> list[TrainerSettings]:
    """Speeds and micro-batches; the slow peer, if any, comes last."""
    rng = random.Random(f"clocking {case.peers} {case.seed}")
    scale = max(1.0, case.target_batch_size / UNIT)
    speeds = [scale * math.exp(rng.uniform(math.log(SLOWEST), math.log(FASTEST))) for _ in range(case.peers)]
    step_s = case.target_batch_size / sum(speeds)
    trainers = [_trainer(speed, step_s) for speed in speeds]
    if case.slow:
        median = sorted(trainers, key=lambda trainer: trainer.samples_per_second)[(len(trainers) - 1) // 2]
        trainers.append(replace(median, micro_batch_s=SLOWER * median.micro_batch_s))
    return trainers


def _trainer(speed: float, step_s: float) -> TrainerSettings:
    wished = min(LARGEST_MICRO_BATCH, speed * step_s / MICRO_BATCHES_A_STEP)
    micro_batch = 2 ** max(0, math.floor(math.log2(wished)))
    return TrainerSettings(micro_batch, micro_batch / speed, jitter=JITTER)


def hosts_of(case: Case) -> list[HostSettings]:
    """Lines and latencies; the slow peer's are those of the first, so that it differs by its speed alone."""
    rng = random.Random(f"clocking lines {case.peers} {case.seed}")
    hosts = [
        HostSettings(
            up_bytes_per_s=rng.uniform(*UPLOAD_BYTES_PER_S),
            down_bytes_per_s=rng.uniform(*DOWNLOAD_BYTES_PER_S),
            latency_s=rng.uniform(*ROUND_TRIP_S) / 4,  # a round trip passes two hosts' latencies twice
        )
        for _ in range(case.peers)
    ]
    return [*hosts, hosts[0]] if case.slow else hosts


def run(case: Case) -> list[Step]:
    """Take the steps of a case; only those after the warm-up are returned."""
    swarms: list[Swarm] = []

    async def live() -> None:
        swarm = Swarm(_spec(case), seed=case.seed, make_replica=_replica, gradient=_pull)
        swarms.append(swarm)
        trainers = trainers_of(case)
        for index, (host, trainer) in enumerate(zip(hosts_of(case), trainers, strict=True)):
            swarm.add(host, trainer, name=f"peer-{index}" if index < case.peers else "slow")
        names = [f"peer-{index}" for index in range(case.peers)]
        step_s = case.target_batch_size / sum(trainer.samples_per_second for trainer in trainers)
        last = case.warm_up + case.steps
        try:
            await swarm.run_until_step(last, limit_s=60.0 + last * (10.0 + 3.0 * step_s), peers=names)
        finally:
            await swarm.close()

    run_virtual(live(), limit_s=1e7)
    return steps_of(swarms[0])[case.warm_up : case.warm_up + case.steps]


def steps_of(swarm: Swarm) -> list[Step]:
    """All steps of a swarm in their order."""
    samples: dict[int, dict[str, int]] = defaultdict(dict)
    applied_s: dict[int, float] = {}
    for name, event in swarm.log.events:
        if event.kind == "round.begun":
            samples[int(str(event.fields["step"])) + 1][name] = int(str(event.fields["samples"]))
        elif event.kind == "step.applied":
            applied_s.setdefault(int(str(event.fields["step"])), event.time)
    return [Step(applied_s[step], samples[step]) for step in sorted(applied_s)]


def _spec(case: Case) -> RunSpec:
    return RunSpec.from_mapping(
        {
            "name": "clocking",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "training": {"target_batch_size": case.target_batch_size, "strategy": case.strategy},
            "averaging": {"codec": "float16"},
            "checkpoints": {"every_steps": 0},
        }
    ).published({})


def _replica(spec: RunSpec) -> Replica:
    torch.manual_seed(spec.training.seed)
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    return Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1), model=model)


def _pull(peer: SimulatedPeer, samples: int) -> None:
    """The gradient of the distance to a number that differs from micro-batch to micro-batch."""
    del samples
    (weight,) = peer.replica.vector.parameters()
    weight.grad = weight.detach() - math.sin(peer.samples_done + int(peer.network.peer_id[:4], 16))
