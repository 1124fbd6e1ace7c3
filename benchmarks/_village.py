"""Five peers that train, three of them at home behind routers that let nobody in, in three worlds.

The same peers with the same lines, vector and target batch size as processes in namespaces (`measure`), as ghosts in
the virtual world (`simulate`), and as `minga plan` sees them (`foresee`). A micro-batch is a pause in all of them, so
that what is compared does not depend on how fast this machine computes.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from benchmarks._links_virtual import LATENCY_S, TURN_S
from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Workers
from benchmarks._standing import Standing, Step
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.network.virtual.internet import HostSettings
from minga.planner.forecast import Forecast, forecast
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import PeerClass, Role
from minga.planner.planned_run import PlannedRun, Volunteers
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.simulation.swarm.swarm import Swarm
from tests.netlab import Host, Lab

FAST, SLOW = 20e6, 8e6
HOSTS: Final = (
    *(Host(f"public{i}", FAST, FAST) for i in range(2)),
    *(Host(f"home{i}", SLOW, FAST, nat=f"router of home{i}") for i in range(3)),
)
NUMEL: Final = 1_000_000
CODEC: Final = "float16"
TARGET_BATCH_SIZE: Final = 200
MICRO_BATCH, MICRO_BATCH_S = 4, 0.4
WARM_UP: Final = 8
"""Steps that do not count: meanwhile the peers find out what their lines carry."""


def median_step_s(steps: Sequence[Step]) -> float:
    """The usual time from one step to the next."""
    return statistics.median(b.at_s - a.at_s for a, b in itertools.pairwise(steps))


def measure(steps: int) -> list[Step]:
    """Real steps after the warm-up. Raises `WorkerError` if the processes do not get on."""
    standing = Standing()
    last = WARM_UP + steps
    with Lab(HOSTS) as lab, Workers() as workers:
        link = ""
        for host in HOSTS:
            settings = {
                "namespace": lab.namespace(host.name),
                "host": lab.address(host.name),
                "directory": str(workers.directory / host.name),
                "spec": _spec().to_toml(),
                "link": link,
                "numel": NUMEL,
                "micro_batch": MICRO_BATCH,
                "micro_batch_s": MICRO_BATCH_S,
            }
            worker = workers.start(host.name, "benchmarks._pausing_peer:peer", settings, standing)
            link = link or standing.wait_for_link(worker)
        for step in range(1, last + 1):
            standing.wait_for_step(step, workers.all)
        return standing.collect(workers.all)[WARM_UP:last]


def simulate(steps: int, seed: int) -> list[Step]:
    """The same steps on virtual time."""
    last = WARM_UP + steps

    async def train() -> Swarm:
        swarm = Swarm(
            _spec().published({}),
            seed=seed,
            make_replica=lambda spec: SizeOnlyReplica(spec, SizeOnlyModel.of_size(NUMEL, moments=0)),
            gradient=no_gradient,
            turn_s=TURN_S,
        )
        for host in HOSTS:
            up, down = (None if rate is None else rate / 8 for rate in (host.up, host.down))
            line = HostSettings(up, down, latency_s=LATENCY_S, dialable=host.nat is None)
            swarm.add(line, TrainerSettings(MICRO_BATCH, MICRO_BATCH_S), name=host.name)
        try:
            await swarm.run_until_step(last)
        finally:
            await swarm.close()
        return swarm

    return _steps_of(run_virtual(train(), limit_s=7200.0))[WARM_UP:last]


def _steps_of(swarm: Swarm) -> list[Step]:
    """All steps of a swarm in their order."""
    samples: dict[int, dict[str, int]] = defaultdict(dict)
    applied_s: dict[int, float] = {}
    for name, event in swarm.log.events:
        if event.kind == "round.begun":
            samples[int(str(event.fields["step"])) + 1][name] = int(str(event.fields["samples"]))
        elif event.kind == "step.applied":
            applied_s.setdefault(int(str(event.fields["step"])), event.time)
    return [Step(applied_s[step], samples[step]) for step in sorted(applied_s)]


def foresee() -> Forecast:
    """What `minga plan` says of these peers."""
    classes: dict[Host, list[Host]] = {}
    for host in HOSTS:
        classes.setdefault(Host("", host.up, host.down, None if host.nat is None else "any"), []).append(host)
    volunteers = tuple(_volunteers(kind, len(hosts)) for kind, hosts in classes.items())
    model = ModelFacts("vector", (NUMEL,), 1.0, 1, None, "")
    return forecast(
        PlannedRun(
            volunteers, model, OptimizerSection(name="sgd"), TARGET_BATCH_SIZE, StrategyChoice("synchronous"), CODEC
        )
    )


def _volunteers(kind: Host, count: int) -> Volunteers:
    role: Role = "trainer" if kind.nat is None else "client"
    peers = PeerClass("", 1, count, (kind.up or 0.0) / 8, (kind.down or 0.0) / 8, role, latency_s=LATENCY_S)
    return Volunteers(peers, role, MICRO_BATCH / MICRO_BATCH_S, MICRO_BATCH, update_s=0.0, speed_origin="given")


def _spec() -> RunSpec:
    return plain_spec("village", TARGET_BATCH_SIZE, averaging={"codec": CODEC})
