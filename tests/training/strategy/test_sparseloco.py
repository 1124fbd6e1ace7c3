"""SparseLoCo: the strategy local without outer momentum, and a sparse codec whose residual decays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minga.averaging.codecs.residual import RoundVectors
from minga.combinations import cautions, check_combinations
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.combined_peers import SAMPLES, CombinedPeer, take_step
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, vector_replica, virtually

PRESET: dict[str, Any] = {
    "training": {"strategy": "local"},
    "strategy": {"local": {"outer_learning_rate": 1.0, "outer_momentum": 0.0}},
    "averaging": {"codec": "topk(k=64, values=2bit)", "residual_decay": 0.95},
}


class GridMover(CombinedPeer):
    """It begins at zero and moves by multiples of 1/256, which float16 holds exactly, as it does their means."""

    def __init__(self, spec: RunSpec, number: int, decay: float) -> None:
        super().__init__(spec, number)
        for group in self.replica.optimizer.param_groups:
            group["lr"] = 1 / 16
        self.replica.write_values(torch.zeros(self.replica.vector.numel))
        self.strategy.restored(self.replica.tensors(), 0, None)
        self.vectors = RoundVectors(self.replica.layout_of, torch.zeros, keeps_uncounted=True, decay=decay)

    def compute(self, micro_batches: int = 2) -> None:
        """See `CombinedPeer`."""
        for _ in range(micro_batches):
            for parameter in self.model.parameters():
                parameter.grad = torch.randint(-16, 17, parameter.shape, generator=self._noise) / 16.0
            assert self.strategy.micro_batch(SAMPLES)
            self.strategy.count(SAMPLES)
            self.replica.zero_grad()
        self.strategy.close()


def moved(averaging: dict[str, str], *, decay: float, peers: int = 2) -> torch.Tensor:
    """The shared parameters after three rounds."""
    spec = RunSpec.from_mapping({"name": "a run", **PRESET, "averaging": averaging, "model": {"recipe": "custom"}})
    swarm = [GridMover(spec, number, decay) for number in range(peers)]
    for _ in range(3):
        take_step(swarm)
    assert len({peer.replica.digest() for peer in swarm}) == 1
    return torch.cat([each.flatten() for each in swarm[0].strategy.shared_tensors().values()])


def test_with_all_elements_it_is_local_sgd_to_the_bit() -> None:
    exact = moved({"codec": "float32"}, decay=1.0)
    assert exact.count_nonzero() > 4000
    assert torch.equal(moved({"codec": "topk(k=4096)", "download_codec": "float32"}, decay=0.0), exact)


def test_the_preset_is_allowed_without_a_warning() -> None:
    spec = RunSpec.from_mapping({"name": "a run", **PRESET})
    check_combinations(spec)
    assert cautions(spec) == ()


@pytest.mark.parametrize("speeds", [(0.32, 0.08, 0.02)])
def test_peers_of_speeds_1_to_4_to_16_agree_by_the_preset(speeds: tuple[float, ...]) -> None:
    @virtually
    async def main() -> None:
        run = {"training": PRESET["training"], "strategy": PRESET["strategy"]}
        averaging = {f"averaging.{key}": value for key, value in PRESET["averaging"].items()}
        spec = make_spec(24, **run).amended(averaging)
        swarm = Swarm(spec, make_replica=vector_replica(9000), gradient=pull, seed=2)
        for seconds in speeds:
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, seconds))
        try:
            await swarm.run_until_step(3, limit_s=200)
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, 0.05))
            await swarm.run_until_step(6, limit_s=200)
            await assert_equal_states(swarm)
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()
