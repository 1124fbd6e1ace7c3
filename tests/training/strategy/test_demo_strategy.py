"""DeMo: steps are the signs of the mean, at the run's learning rate, and no other optimizer has a say."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.combinations import check_combinations
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB, SGD, AdamW
from minga.training.replica.replica import Replica
from minga.training.strategy.demo import Demo
from tests.worlds.combined_peers import SAMPLES, CombinedPeer, take_step

SPEC = RunSpec.from_mapping({"name": "demo", "training": {"strategy": "demo"}})
RATE, DECAY = 0.01, 0.1


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def trainer(kind: type[torch.optim.Optimizer], **settings: Any) -> tuple[Demo, Replica]:
    trained = model()
    optimizer = kind(trained.parameters(), lr=RATE, **settings)
    replica = Replica(SPEC, optimizer, model=trained)
    strategy = Demo(threading.Condition(), unit=1)
    strategy.begin(replica)
    return strategy, replica


@pytest.mark.parametrize("kind", [SGD, torch.optim.SGD])
def test_a_step_is_the_sign_of_the_mean_and_decoupled_weight_decay(kind: type[torch.optim.Optimizer]) -> None:
    strategy, replica = trainer(kind, weight_decay=DECAY)
    torch.manual_seed(2)
    size = replica.vector.parameters_numel
    for step in range(1, 4):
        mean = torch.randn(replica.vector.numel)
        mean[:3] = torch.tensor([0.0, -0.0, 1e-40])
        before, kept = replica.read_values(), mean.clone()
        strategy.absorb(step, mean, ContributionFate.COUNTED)
        wanted = (before - RATE * (mean.sign() + DECAY * before))[:size]
        assert torch.allclose(replica.read_values()[:size], wanted, atol=1e-7)
        assert torch.equal(mean, kept)


@pytest.mark.parametrize("kind", [AdamW, LAMB, torch.optim.AdamW, torch.optim.RMSprop])
def test_another_optimizer_is_refused_and_not_ignored(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(ConfigurationError, match=f'"demo" brings its own optimizer instead of {kind.__name__}'):
        trainer(kind)


def test_momentum_and_clipping_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer\.momentum = 0"):
        trainer(SGD, momentum=0.9)
    trained = model()
    with pytest.raises(ConfigurationError, match='max_grad_norm = "off"'):
        Replica(SPEC, SGD(trained.parameters(), lr=RATE), model=trained, max_grad_norm=1.0)


# ---- with a sketch and a sparse codec


class GridPeer(CombinedPeer):
    """Its gradients are sixteenths, so that float16 holds them, their means and their sums exactly."""

    def compute(self, micro_batches: int = 2) -> None:
        """See `CombinedPeer`."""
        for _ in range(micro_batches):
            for parameter in self.model.parameters():
                parameter.grad = torch.randint(-24, 25, parameter.shape, generator=self._noise) / 16.0
            self.strategy.note_loss(1.0)
            assert self.strategy.micro_batch(SAMPLES)
            self.strategy.count(SAMPLES)
            self.replica.zero_grad()
        self.strategy.close()


def grid_peers(**sections: dict[str, Any]) -> list[GridPeer]:
    spec = RunSpec.from_mapping({"name": "grid", "model": {"recipe": "custom"}, **sections})
    check_combinations(spec)
    return [GridPeer(spec, number) for number in range(3)]


def parameters(peer: CombinedPeer) -> torch.Tensor:
    return peer.replica.read_values()


def test_with_all_coefficients_it_is_descent_by_the_signs_of_the_mean_to_the_bit() -> None:
    everything = {"codec": "topk(k=4096)", "download_codec": "float32"}
    peers = grid_peers(training={"strategy": "demo"}, averaging=everything)
    reference = GridPeer(RunSpec.from_mapping({"name": "grid", "averaging": {"codec": "float32"}}), 0)
    others = [GridPeer(RunSpec.from_mapping({"name": "grid", "averaging": {"codec": "float32"}}), n) for n in (1, 2)]
    for step in range(4):
        take_step(peers)
        total = torch.zeros(reference.replica.vector.numel)
        for each in (reference, *others):
            each.compute()
            vector, samples = each.strategy.contribution()
            assert vector is not None
            total += samples * vector
        for each in (reference, *others):
            each.strategy.absorb(step + 1, total.sign(), ContributionFate.COUNTED)
    assert torch.equal(parameters(peers[0]), parameters(reference))
    assert len({peer.replica.digest() for peer in peers}) == 1


@pytest.mark.parametrize(("k", "least"), [(32, 0.55), (4096, 0.999)])
def test_what_is_sent_of_the_cosine_coefficients_gives_the_signs_of_the_mean(k: int, least: float) -> None:
    averaging = {"codec": f"topk(k={k})", "download_codec": "float32", "sketch": "dct64"}
    peers = grid_peers(training={"strategy": "demo"}, averaging=averaging)
    before, vectors = parameters(peers[0]), []
    for peer in peers:
        peer.compute()
        vector, _ = peer.strategy.contribution()
        assert vector is not None
        vectors.append(vector)
    mean = torch.stack(vectors).mean(0)
    for peer in peers:
        peer.compute = lambda: None  # type: ignore[method-assign, misc]  # it has done so
    take_step(peers)
    moved = before - parameters(peers[0])
    clear = (mean.abs() > 0.1) & (moved != 0)
    assert clear.sum() > 1000
    assert (moved.sign() == mean.sign())[clear].float().mean() > least
    assert len({peer.replica.digest() for peer in peers}) == 1


def test_averaged_buffers_move_by_their_mean() -> None:
    strategy, replica = trainer(SGD)
    mean = torch.full((replica.vector.numel,), 0.25)
    strategy.absorb(1, mean, ContributionFate.COUNTED)
    assert torch.equal(replica.tensors()["model/1.running_mean"], torch.full((4,), 0.25))
