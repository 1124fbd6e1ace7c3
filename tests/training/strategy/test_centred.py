"""Elastic and leader: what rounds do to the centre and to the peers around it, by hand and in a double well."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import PeerScore
from minga.averaging.planning.best_contributor import best_contributor
from minga.combinations import check_combinations
from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.spec.run_spec import RunSpec
from minga.network.interface import PeerId
from minga.optim import SGD
from minga.training.replica.replica import Replica
from minga.training.strategy.centred import Centred, Elastic, ElasticSettings
from minga.training.strategy.interface import Recovery
from minga.training.strategy.leader import Leader, LeaderSettings

SPEC = RunSpec.from_mapping({"name": "centred"})
COUNTED, ABSENT = ContributionFate.COUNTED, ContributionFate.ABSENT
RATE = 0.05


class Peer:
    """One strategy on `numel` numbers, all 0 at first, under plain gradient descent with momentum."""

    def __init__(self, kind: type[Centred], settings: Any, numel: int = 6, momentum: float = 0.0) -> None:
        model = torch.nn.Linear(numel, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        self.weight = model.weight
        self.replica = Replica(SPEC, SGD(model.parameters(), lr=RATE, momentum=momentum), model=model)
        self.strategy = kind(threading.Condition(), unit=1, settings=settings)
        self.strategy.begin(self.replica)

    @property
    def x(self) -> torch.Tensor:
        return self.weight.detach().flatten().clone()

    @property
    def centre(self) -> torch.Tensor:
        return self.strategy.shared_tensors()["model/weight"].flatten().clone()

    def move_to(self, *values: float) -> None:
        """Set the own parameters, and count a sample."""
        self.replica.write_values(torch.tensor(values))
        self.strategy.count(1)

    def receive(self, step: int, *mean: float) -> None:
        """A round without this peer's contribution had this mean."""
        vector = self.replica.vector.new()
        vector[: len(mean)] = torch.tensor(mean)
        self.strategy.absorb(step, vector, ABSENT)

    def step(self, gradient: torch.Tensor, loss: float = 1.0) -> bool:
        self.weight.grad = gradient.reshape(self.weight.shape).clone()
        self.strategy.note_loss(loss)
        taken = self.strategy.micro_batch(1)
        if taken:
            self.strategy.count(1)
        self.replica.zero_grad()
        return taken


def take_round(peers: Sequence[Peer], contributors: Sequence[int], *, name: str = "float32") -> None:
    """One round, in which those give something, all as much."""
    given = []
    for index in contributors:
        vector, _ = peers[index].strategy.contribution()
        assert vector is not None
        given.append(vector)
    mean = torch.stack(given).mean(0)
    if name != "float32":
        body = memoryview(bytearray(codec(name).max_encoded_bytes(mean.numel())))
        codec(name).encode(mean, body, limit=1e9)
        codec(name).decode(body, mean)
    for index, peer in enumerate(peers):
        peer.strategy.note_round(len(given), len(given))
        peer.strategy.absorb(peer.replica.step + 1, mean, COUNTED if index in contributors else ABSENT)


def best_of(peers: Sequence[Peer]) -> list[int]:
    scores = {PeerId(str(index)): peer.strategy.score for index, peer in enumerate(peers)}
    best = best_contributor("run", peers[0].replica.step, scores)
    assert best is not None
    return [int(best)]


# ---- elastic


def test_with_full_springs_each_peer_comes_to_the_old_centre_and_the_centre_to_the_mean() -> None:
    peers = [Peer(Elastic, ElasticSettings(beta=1.0, alpha=1.0), 2) for _ in range(3)]
    for number in range(3):
        for place, peer in enumerate(peers):
            peer.move_to(place * 2.0 + number, 8.0 - place)
        old, mean = peers[0].centre, torch.stack([peer.x for peer in peers]).mean(0)
        take_round(peers, [0, 1, 2])
        for peer in peers:
            assert torch.equal(peer.x, old)
            assert torch.equal(peer.centre, mean)


def test_a_spring_pulls_at_both_ends_alike() -> None:
    peers = [Peer(Elastic, ElasticSettings(beta=0.5), 1) for _ in range(4)]
    for place, peer in enumerate(peers):
        peer.move_to(8.0 * place)
    take_round(peers, range(4))
    assert [float(peer.x) for peer in peers] == [7 / 8 * 8.0 * place for place in range(4)]
    assert float(peers[0].centre) == 0.5 * 12.0
    assert sum(float(peer.x) for peer in peers) + float(peers[0].centre) == 8.0 * 6


# ---- leader


@pytest.mark.parametrize(("name", "error"), [("float32", 0.0), ("float16", 2.0**-11), ("int8", 1 / 127)])
def test_the_best_peer_stays_where_it_is(name: str, error: float) -> None:
    torch.manual_seed(5)
    peers = [Peer(Leader, LeaderSettings(pull=0.3)) for _ in range(3)]
    for _ in range(4):
        for peer in peers:
            peer.step(torch.randn(6), float(torch.rand(1)))
        (best,) = best_of(peers)
        before = [peer.x for peer in peers]
        distance = before[best] - peers[best].centre
        take_round(peers, [best], name=name)
        moved = (peers[best].x - before[best]).abs().max()
        assert moved <= 0.3 * error * distance.abs().max() + 2.0**-23  # the difference itself is rounded, too
        other = (best + 1) % 3
        drawn = before[other] + 0.3 * (peers[other].centre - before[other])
        assert torch.allclose(peers[other].x, drawn, atol=1e-6)
        assert len({tuple(peer.centre.tolist()) for peer in peers}) == 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Leader, LeaderSettings(pull=0.0, inner_pull=0.0)), (Elastic, ElasticSettings(alpha=0.0))],
)
def test_without_pull_each_peer_goes_its_own_way(kind: type[Centred], settings: Any) -> None:
    torch.manual_seed(5)
    peers = [Peer(kind, settings, momentum=0.9) for _ in range(3)]
    alone = [torch.nn.Parameter(torch.zeros(6)) for _ in peers]
    optimizers = [SGD([each], lr=RATE, momentum=0.9) for each in alone]
    for number in range(12):
        for peer, parameter, optimizer in zip(peers, alone, optimizers, strict=True):
            gradient = torch.randn(6)
            peer.step(gradient)
            parameter.grad = gradient
            optimizer.step()
        if number % 3 == 2:
            take_round(peers, best_of(peers) if kind is Leader else range(3))
    for peer, parameter in zip(peers, alone, strict=True):
        assert torch.equal(peer.x, parameter.detach())


def test_between_rounds_each_step_draws_a_little_to_the_last_best_peer() -> None:
    peer = Peer(Leader, LeaderSettings(pull=0.5, inner_pull=0.2), 1)
    peer.step(torch.tensor([-20.0]))
    peer.step(torch.tensor([-20.0]))
    assert float(peer.x) == 2.0  # nothing to be drawn to before the first round
    peer.receive(1, 6.0)
    assert float(peer.x) == 4.0
    peer.step(torch.zeros(1))
    assert float(peer.x) == pytest.approx(4.0 + 0.1 * 2.0)  # it took two steps in the round before


def test_the_score_is_the_mean_of_the_last_losses() -> None:
    peer = Peer(Leader, LeaderSettings(score_micro_batches=3))
    assert peer.strategy.score is None
    for loss, wanted in ((6.0, 6.0), (2.0, 4.0), (1.0, 3.0), (0.0, 1.0)):
        peer.step(torch.zeros(6), loss)
        assert peer.strategy.score == PeerScore(wanted, early=loss > 1.0)
    peer.receive(1)
    assert peer.strategy.score is None  # it has nothing to give yet
    peer.step(torch.zeros(6), 5.0)
    assert peer.strategy.score == PeerScore(2.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e31])
def test_a_micro_batch_whose_loss_is_no_number_is_dropped(loss: float) -> None:
    peer = Peer(Leader, LeaderSettings())
    assert not peer.step(torch.ones(6), loss)
    assert (peer.strategy.score, float(peer.x.abs().max())) == (None, 0.0)


def test_a_program_that_does_not_tell_its_loss_is_told_how() -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer\.step\(samples=\.\.\., loss=loss\)"):
        Peer(Leader, LeaderSettings()).strategy.note_loss(None)
    Peer(Elastic, ElasticSettings()).strategy.note_loss(None)


LOSSY = [{"codec": name} for name in ("topk", "randomk", "gaussiank", "sign")] + [{"sketch": "powersgd"}]


@pytest.mark.parametrize("averaging", LOSSY, ids=str)
@pytest.mark.parametrize("strategy", ["elastic", "leader"])
def test_no_run_makes_up_for_distances_that_are_there_again(strategy: str, averaging: dict[str, str]) -> None:
    """With `randomk` a centre was ten thousand times as far from 0 as its peers after a hundred rounds."""
    spec = RunSpec.from_mapping({"name": "lossy", "training": {"strategy": strategy}, "averaging": averaging})
    with pytest.raises(ConfigurationError, match="sends"):
        check_combinations(spec)


# ---- state


@pytest.mark.parametrize(("kind", "settings"), [(Leader, LeaderSettings(inner_pull=0.0)), (Elastic, ElasticSettings())])
def test_a_peer_that_lost_its_parameters_begins_at_the_centre(kind: type[Centred], settings: Any) -> None:
    for rounds in (0, 1):
        peer = Peer(kind, settings, 1, momentum=0.9)
        peer.step(torch.tensor([1.0]))
        peer.replica.write_values(torch.tensor([math.nan]))
        with pytest.raises(NonFiniteError):
            peer.strategy.contribution()
        assert peer.strategy.contribution() == (None, 0)
        for _ in range(rounds):
            peer.receive(1, 3.0)
        if not rounds:
            assert not peer.step(torch.tensor([math.nan]))
        assert torch.equal(peer.x, peer.centre)
        assert peer.strategy.score is None
        assert peer.step(torch.tensor([-1.0]))  # without momentum of what was lost
        assert float(peer.x - peer.centre) == pytest.approx(RATE)


@pytest.mark.parametrize(("kind", "settings"), [(Leader, LeaderSettings(inner_pull=0.0)), (Elastic, ElasticSettings())])
def test_its_optimizer_is_fresh_then(kind: type[Centred], settings: Any) -> None:
    """Zeros are no beginning for each of them: Rprop multiplies what it keeps, and would rest for good."""
    model = torch.nn.Linear(1, 1, bias=False)
    replica = Replica(SPEC, torch.optim.Rprop(model.parameters(), lr=RATE), model=model)
    strategy = kind(threading.Condition(), unit=1, settings=settings)
    strategy.begin(replica)
    model.weight.grad = torch.ones(1, 1)
    strategy.note_loss(1.0)
    assert strategy.micro_batch(1)
    strategy.count(1)
    replica.write_values(torch.tensor([math.nan]))
    with pytest.raises(NonFiniteError):
        strategy.contribution()
    assert not strategy.micro_batch(1)
    before = model.weight.item()
    model.weight.grad = torch.ones(1, 1)
    assert strategy.micro_batch(1)
    assert before - model.weight.item() == pytest.approx(RATE)


def test_a_peer_that_missed_rounds_keeps_its_own_and_is_drawn_to_the_new_centre() -> None:
    for kind, settings, wanted in (
        (Leader, LeaderSettings(pull=0.5), 6.0),
        (Elastic, ElasticSettings(), 4.0),
    ):
        others, late = Peer(kind, settings, 1, momentum=0.9), Peer(kind, settings, 1, momentum=0.9)
        late.step(torch.tensor([-80.0]))
        local = {name: each.clone() for name, each in late.strategy.local_tensors().items()}
        for step in (1, 2):
            others.receive(step, 4.0 / (1.0 if kind is Leader else 0.43))
        assert late.strategy.missed(2) is Recovery.REBASE
        snapshot = others.replica.capture()
        late.replica.restore(snapshot)
        late.strategy.restored({}, snapshot.step, local)
        assert float(late.centre) == pytest.approx(8.0)
        assert float(late.x) == pytest.approx(wanted)
        assert late.strategy.samples == 1
        assert [float(each) for each in late.replica.moments().values()] == [-80.0]
