"""SparseLoCo: the strategy local without outer momentum, and a sparse codec whose residual decays."""

from __future__ import annotations

from typing import Any

import torch

from minga.averaging.codecs.residual import RoundVectors
from minga.combinations import cautions, check_combinations
from minga.core.spec.run_spec import RunSpec
from tests.worlds.combined_peers import SAMPLES, CombinedPeer, take_step

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
