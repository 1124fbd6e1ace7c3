"""Averaged buffers: their movement counts once, and what cannot move is put back or refused by its name."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.buffers import OwnBuffers, SharedBuffers
from minga.training.replica.replica import Replica
from minga.training.strategy.centred import Elastic
from minga.training.strategy.interface import Strategy
from minga.training.strategy.local import Local
from minga.training.strategy.synchronous import Delayed
from tests.worlds.combined_peers import SIZE, CombinedPeer
from tests.worlds.combined_peers import take_step as combined_step
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

SPEC = RunSpec.from_mapping({"name": "buffers"})
MEAN, SPREAD = 5.0, 0.1


class Peer:
    """A BatchNorm over data whose mean and variance are far from those that it begins with."""

    def __init__(self, kind: type[Strategy], **settings: Any) -> None:
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(4)
        model = nn.Sequential(self.norm, nn.Linear(4, 1))
        self.replica = Replica(SPEC, torch.optim.SGD(model.parameters(), lr=1e-4), model=model)
        self.strategy = kind(threading.Condition(), unit=1, settings=kind.Settings(**settings))
        self.replica.hand_over("local", keeps_uncounted=self.strategy.facts.keeps_uncounted)
        self.strategy.begin(self.replica)
        self.model = model

    def train(self, micro_batches: int) -> None:
        for _ in range(micro_batches):
            self.model(MEAN + SPREAD * torch.randn(64, 4)).mean().backward()
            assert self.strategy.micro_batch(64)
            self.strategy.count(64)
            self.replica.zero_grad()

    def seal(self) -> torch.Tensor:
        self.strategy.close()
        vector, _ = self.strategy.contribution()
        assert vector is not None
        return vector.clone()

    def take_round(self, late: int = 0) -> None:
        mean = self.seal()
        self.train(late)
        self.strategy.absorb(self.replica.step + 1, mean, ContributionFate.COUNTED)

    def shared(self) -> tuple[float, float]:
        """The largest mean and the least variance in the state of all peers."""
        found = {entry.name: tensor for entry, tensor in self.replica.capture().named_tensors()}
        return float(found["model/0.running_mean"].max()), float(found["model/0.running_var"].min())


@pytest.mark.parametrize(("kind", "settings"), [(Delayed, {}), (Local, {"overlap": True}), (Local, {"fragments": 2})])
@pytest.mark.parametrize(("micro_batches", "late"), [(1, 1), soaked(8, 8), (16, 8), (16, 16), soaked(64, 64)])
def test_statistics_come_to_those_of_the_data_and_never_go_beyond(
    kind: type[Strategy], settings: dict[str, Any], micro_batches: int, late: int
) -> None:
    peer = Peer(kind, **settings)
    late = late if peer.strategy.facts.keeps_late_micro_batches else 0
    peer.train(micro_batches)
    seen = []
    for _ in range(max(10, 60 // micro_batches)):
        peer.take_round(late)
        seen.append(peer.shared())
        peer.train(micro_batches - late)
    assert max(mean for mean, _ in seen) < MEAN + 0.1
    assert min(variance for _, variance in seen) > 0.0
    mean, variance = seen[-1]
    assert mean > MEAN - 0.25
    assert variance < 0.06


def test_what_a_forward_pass_under_way_has_moved_is_in_no_contribution() -> None:
    one, other = Peer(Local, overlap=True), Peer(Local, overlap=True)
    for peer in (one, other):
        torch.manual_seed(1)
        peer.train(3)
    one.model(torch.randn(64, 4))
    assert torch.equal(one.seal(), other.seal())


@pytest.mark.parametrize("kind", [Local, Elastic])
def test_a_process_that_is_started_anew_has_what_its_buffers_had_moved(kind: type[Strategy]) -> None:
    peer, again = Peer(kind), Peer(kind)
    peer.train(2)
    peer.take_round()
    peer.train(3)
    local = {name: tensor.clone() for name, tensor in peer.strategy.local_tensors().items()}
    snapshot = peer.replica.capture()
    shared = {entry.name: tensor for entry, tensor in snapshot.named_tensors()}
    again.replica.restore(snapshot)
    again.strategy.restored(shared, snapshot.step, local)
    sent = peer.seal()
    assert sent[peer.replica.vector.parameters_numel :].any()
    assert torch.equal(again.seal(), sent)


def test_a_bad_micro_batch_beside_a_round_leaves_buffers_where_they_were_before_it() -> None:
    peer, twin = Peer(Delayed), Peer(Delayed)
    for each in (peer, twin):
        torch.manual_seed(1)
        each.train(8)
        mean = each.seal()
        each.train(2)
        if each is peer:
            each.model(torch.full((4, 4), math.nan)).mean().backward()
            assert not each.strategy.micro_batch(4)
            each.replica.zero_grad()
        each.train(2)
        each.strategy.absorb(1, mean, ContributionFate.COUNTED)
    for name, buffer in twin.norm.named_buffers():
        torch.testing.assert_close(peer.norm.get_buffer(name), buffer)


@virtually
async def test_what_is_dropped_with_its_strategy_leaves_nothing_in_the_buffers() -> None:
    for changes in (True, False):
        peer = Peer(Delayed)
        port = GradientPort(asyncio.get_running_loop(), peer.replica, strategy=StrategyChoice("delayed"))
        peer.model(torch.randn(64, 4)).mean().backward()
        assert port.add(64)
        assert peer.norm.running_mean is not None
        assert peer.norm.running_mean.all()
        if changes:
            port.change(StrategyChoice("synchronous"))
        else:
            port.begin_anew()
        assert not peer.norm.running_mean.any()
        assert not any(moved.any() for moved in peer.replica.moved)


# ---- where codecs and sketches leave something out


class Codebook(nn.Linear):
    """A layer beside a large table that follows numbers of each peer's own, as a running mean."""

    table: torch.Tensor

    def __init__(self, target: torch.Tensor) -> None:
        super().__init__(SIZE, 4)
        self.register_buffer("table", torch.zeros_like(target))
        self.target = target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table.lerp_(self.target, 0.1)
        return super().forward(x)


LEFT_OUT = (
    {"codec": "topk"},
    {"codec": "topk", "download_codec": "gtopk"},
    {"codec": "float16", "sketch": "powersgd(rank=1,start=0)"},
    {"codec": "topk", "sketch": "dct64"},
)
STRATEGIES = ("synchronous", "delayed", "local")
WAYS = [(averaging, STRATEGIES[(at + turn) % 3]) for turn in range(3) for at, averaging in enumerate(LEFT_OUT)]


@pytest.mark.parametrize(("averaging", "strategy"), [*WAYS[:4], *(soaked(*each) for each in WAYS[4:])], ids=str)
def test_running_means_come_to_the_mean_of_all_peers_whatever_is_left_out(
    averaging: dict[str, str], strategy: str
) -> None:
    torch.manual_seed(0)
    targets = [1.0 + torch.randn(128, 64), -2.0 + torch.randn(128, 64)]
    spec = RunSpec.from_mapping({"name": "left out", "averaging": averaging, "training": {"strategy": strategy}})
    peers = [CombinedPeer(spec, number, Codebook(target)) for number, target in enumerate(targets)]
    for _ in range(40):
        combined_step(peers)
    for peer in peers:
        peer.strategy.conclude()
        table = peer.model.get_buffer("table")
        torch.testing.assert_close(table, (targets[0] + targets[1]) / 2, rtol=0.0, atol=0.05)


# ---- what cannot move


class Holder(nn.Module):
    """A layer with one buffer beside it, which each forward pass may change."""

    def __init__(self, buffer: torch.Tensor, change: Callable[[torch.Tensor], object] = lambda _: None) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(3, 2), change
        self.register_buffer("kept", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self.get_buffer("kept"))
        found: torch.Tensor = self.layer(x)
        return found


def take_step(model: Holder, micro_batches: int = 3) -> list[bool]:
    """One global step of one peer; which of its micro-batches counted."""
    replica = Replica(SPEC, torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    total, taken = replica.new_sum(), []
    for _ in range(micro_batches):
        model(torch.ones(4, 3)).mean().backward()
        replica.collect(4)
        taken.append(bool(total.add(4.0)))
        replica.zero_grad()
    replica.apply(total.vector() / (4 * micro_batches), 1)
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn])
@pytest.mark.parametrize("value", [1.0, math.inf, math.nan])
def test_constants_of_all_kinds_stay_as_they_are(dtype: torch.dtype, value: float) -> None:
    model = Holder(torch.tensor([1.0, value]).to(dtype))
    before = model.get_buffer("kept").clone()
    assert take_step(model) == [True] * 3
    assert torch.equal(model.get_buffer("kept").view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("begin", [math.inf, -math.inf, math.nan])
def test_what_was_not_finite_goes_back_and_is_told_by_its_name(begin: float, caplog: pytest.LogCaptureFixture) -> None:
    model = Holder(torch.tensor([begin, 0.0]), lambda kept: kept.copy_(torch.tensor([1.5, 1.0])))
    with caplog.at_level(logging.WARNING):
        assert take_step(model) == [True] * 3
    kept = model.get_buffer("kept")
    assert not kept[0].isfinite()
    assert kept[1] == 1.0
    told = [record.getMessage() for record in caplog.records if "NaN or infinite" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("the buffer kept was NaN or infinite")


def test_constants_that_are_not_finite_are_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        take_step(Holder(torch.tensor([math.nan, math.inf])))
    assert not caplog.records


def test_a_buffer_that_leaps_too_far_to_be_sent_goes_back_and_its_micro_batch_does_not_count() -> None:
    calls = iter([1e30, 2.0, 3.0])
    model = Holder(torch.zeros(1), lambda kept: kept.fill_(next(calls)))
    assert take_step(model) == [False, True, True]
    assert model.get_buffer("kept").tolist() == pytest.approx([5.0 / 3.0])


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (torch.zeros(1).expand(4), "several elements of the buffer kept are one number in memory"),
        (torch.zeros(3, 3).to_sparse(), "the buffer kept is sparse"),
        (torch.zeros(3, device="meta"), "the buffer kept is on the device meta"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_its_name(buffer: torch.Tensor, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SharedBuffers(Holder(buffer))


def test_own_buffers_that_no_file_can_have_are_left_out() -> None:
    """`fully_shard` leaves buffers as they are, and DTensors among them ended training at the first checkpoint."""
    model = nn.BatchNorm1d(3)
    shard = torch.ones(4)
    shard.placements = ()  # type: ignore[attr-defined]  # as whatever asks for a DTensor sees one
    model.register_buffer("table", shard)
    model.register_buffer("scales", TwoTensor(torch.ones(4), torch.ones(4)))
    buffers = OwnBuffers(model)
    written = buffers.written()
    assert load(written).keys() == {"running_mean", "running_var", "num_batches_tracked"}
    buffers.take(written)


class NormByFunction(nn.BatchNorm1d):
    """It counts nothing, and torch does not note what the function does to the mean."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(input, self.running_mean, self.running_var, training=self.training)


class ConstantNorm(nn.BatchNorm1d):
    """As norms of detectors are: frozen in both modes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(input, self.running_mean, self.running_var, training=False)


def verified(model: nn.Module) -> tuple[Replica, Callable[[], int]]:
    """A replica in a run whose members compute each other's gradients again, and what gives it a micro-batch."""
    training, secure = {"buffers": "local", "target_batch_size": 24}, {"verification": "byzantine", "founders": 3}
    spec = RunSpec.from_mapping({"name": "frozen", "training": training, "security": secure | {"micro_batch_size": 4}})
    replica = Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1), model=model)

    def collect() -> int:
        model(torch.randn(4, 4)).sum().backward()
        return replica.collect(4)

    return replica, collect


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, NormByFunction])
def test_a_norm_that_was_frozen_after_some_steps_is_refused_where_others_verify_gradients(
    kind: type[nn.BatchNorm1d],
) -> None:
    """Its statistics are of this peer's own data: honest peers were banned. Those that all begin with are no matter."""
    frozen, norm = kind(4).eval(), kind(4)
    replica, collect = verified(nn.Sequential(frozen, norm, nn.Linear(4, 1)))
    norm.eval()
    collect()
    replica.take_buffers(replica.own_buffers())
    collect()
    norm.train()
    collect()
    norm.eval()
    with pytest.raises(ConfigurationError, match=rf"`1` \({kind.__name__}\) is in eval mode"):
        collect()


def test_who_goes_on_with_a_trained_state_is_told_of_norms_that_count_and_have_seen_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Constant ones, whose mean is 0 for good, were spoken of as well."""
    model = nn.ModuleDict({"constant": Holder(torch.zeros(3)), "norm": nn.BatchNorm1d(3)})
    model["constant"].register_buffer("running_mean", torch.zeros(3))
    OwnBuffers(model).warn_of_new()
    assert "the buffer norm.running_mean is 0:" in caplog.text


def test_norms_of_constants_that_are_one_number_in_memory_are_not_refused() -> None:
    """They were, as if their statistics were of a peer's own data."""
    norm = ConstantNorm(4)
    norm.running_mean, norm.running_var = torch.zeros(1).expand(4), torch.ones(1).expand(4)
    _, collect = verified(nn.Sequential(norm, nn.Linear(4, 1)))
    collect()
    norm.eval()
    collect()


def test_a_norm_that_learns_nothing_is_not_told_that_its_statistics_are_of_own_data() -> None:
    """Its program gave it others too late, or left them to the folder of the run."""
    norm = ConstantNorm(4)
    _, collect = verified(nn.Sequential(norm, nn.Linear(4, 1)))
    collect()
    norm.eval()
    collect()
    torch.nn.init.constant_(norm.running_mean, 3.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"other statistics than .* gives it before it makes minga\.Optimizer"):
        collect()


def test_a_norm_with_the_statistics_that_it_began_with_is_not_refused() -> None:
    """Honest peers were: whose norms are constant in both modes, or whose weights were swapped for an evaluation."""
    model = nn.Sequential(ConstantNorm(4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 1))
    _, collect = verified(model)
    collect()
    model.eval()
    kept = {name: each.clone() for name, each in model.state_dict().items()}
    model.load_state_dict({name: torch.full_like(each, 3) for name, each in kept.items()})
    model.load_state_dict(kept)
    collect()
