"""Forecasts against swarms of production code in virtual time: the same peers, the same steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.sections import OptimizerSection
from minga.network.virtual.internet import HostSettings
from minga.planner.forecast import forecast
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import PeerClass, Role
from minga.planner.planned_run import PlannedRun, Volunteers
from minga.simulation import run_virtual
from minga.simulation.swarm.swarm import Swarm, TrainerSettings
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import make_spec, pull, vector_replica

NUMEL = 100_000


@dataclass(frozen=True)
class Kind:
    """Equal peers of both worlds: bytes per second, and how they compute."""

    count: int
    upload: float
    download: float
    trainer: TrainerSettings | None
    role: Role = "trainer"

    @property
    def host(self) -> HostSettings:
        return HostSettings(self.upload, self.download, latency_s=0.02, dialable=self.role != "client")

    @property
    def volunteers(self) -> Volunteers:
        peers = PeerClass("", 1, self.count, self.upload, self.download, self.role, latency_s=0.02)
        speed, micro_batch = (self.trainer.samples_per_second, self.trainer.micro_batch) if self.trainer else (0.0, 1)
        return Volunteers(peers, self.role, speed, micro_batch, update_s=0.0, speed_origin="given")


QUICK, BRISK = TrainerSettings(4, 0.4), TrainerSettings(4, 0.2)
AUXILIARY = Kind(1, 5e6, 5e6, None, "auxiliary")
MIXED = [Kind(2, 0.5e6, 0.5e6, BRISK), Kind(2, 0.5e6, 0.5e6, TrainerSettings(16, 3.0))]
SWARMS: dict[str, tuple[list[Kind], int, str]] = {
    "alike": ([Kind(4, 0.5e6, 0.5e6, QUICK)], 100, "synchronous"),
    "long micro-batches": ([Kind(4, 2e6, 2e6, TrainerSettings(32, 3.2))], 200, "synchronous"),
    "homes and an auxiliary": ([Kind(3, 0.2e6, 1e6, QUICK), AUXILIARY], 240, "synchronous"),
    "clients": ([Kind(1, 1.2e6, 1.2e6, BRISK), Kind(3, 0.2e6, 1e6, QUICK, "client")], 80, "synchronous"),
    "mixed speeds": (MIXED, 150, "synchronous"),
    "mixed speeds, delayed": (MIXED, 150, "delayed"),
    "rounds longer than computing": ([Kind(4, 0.24e6, 0.24e6, BRISK)], 48, "delayed"),
}
EASIER = ("alike", "long micro-batches", "mixed speeds", "rounds longer than computing")
"""What the others have in them."""


def measured_step_s(kinds: list[Kind], batch: int, strategy: str, first: int = 4, steps: int = 2) -> float:
    """Seconds of a step once the peers know their lines: they probe them while the first steps are computed."""

    async def go() -> float:
        spec = make_spec(batch, digest_every=1000, training={"strategy": strategy})
        swarm = Swarm(spec, seed=1, make_replica=vector_replica(NUMEL), gradient=pull)
        for kind in kinds:
            for _ in range(kind.count):
                swarm.add(kind.host, kind.trainer, auxiliary=kind.trainer is None)
        await swarm.run_until_step(first)
        begun = asyncio.get_running_loop().time()
        await swarm.run_until_step(first + steps)
        seconds = asyncio.get_running_loop().time() - begun
        await swarm.close()
        return seconds / steps

    return run_virtual(go(), limit_s=1000.0)


@pytest.mark.parametrize("name", [soaked(name) if name in EASIER else name for name in SWARMS])
def test_steps_take_as_long_as_foreseen(name: str) -> None:
    kinds, batch, strategy = SWARMS[name]
    model = ModelFacts("vector", (NUMEL,), 1.0, 1, None, "")
    setting = PlannedRun(
        tuple(kind.volunteers for kind in kinds),
        model,
        OptimizerSection(name="sgd"),
        batch,
        StrategyChoice(strategy),
        "float32",
    )
    foreseen, measured_s = forecast(setting), measured_step_s(kinds, batch, strategy)
    assert foreseen.step_s == pytest.approx(measured_s, rel=0.15), (foreseen.round_s, foreseen.filling_s)
