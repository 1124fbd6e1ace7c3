"""`minga.Optimizer` as a torch optimizer: one peer alone, with a real event loop, against the bare torch optimizer."""

from __future__ import annotations

import _thread
import copy
import itertools
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import minga
from minga.core.events.bus import Event
from minga.training.access.standing_orders import PAUSED, STOP
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.member import Member
from minga.training.organiser import desk_in
from minga.training.replica.buffers import SharedBuffers, averaged_buffers
from minga.training.replica.flat_vector import ParameterVector
from minga.training.state.manifest import build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery

BATCH = 12
STEPS = 4

MakePeer = Callable[..., minga.Peer]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[MakePeer]:
    """Makes peers that host a run of a custom recipe, alone; keyword arguments go to its `[training]` section."""
    peers: list[minga.Peer] = []

    def make(*, codec: str = "float32", checkpoint_every: int = 0, **training: Any) -> minga.Peer:
        values = {"target_batch_size": BATCH, "stop_after_steps": STEPS, **training}
        spec = minga.RunSpec.from_mapping(
            {
                "name": "test",
                "model": {"recipe": "custom"},
                "training": {name: value for name, value in values.items() if value is not None},
                "averaging": {"codec": codec},
                "state": {"digest_every": 1},
                "checkpoints": {"every_steps": checkpoint_every},
            }
        )
        directory = tmp_path / "peers" / str(len(peers))
        directory.mkdir(parents=True)
        peers.append(minga.host(spec, minga.PeerOptions(ephemeral=True, directory=directory, host="127.0.0.1")))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batches(samples: int) -> Iterator[torch.Tensor]:
    for seed in itertools.count():
        yield torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


def mean_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def train(opt: minga.Optimizer, model: nn.Module, samples: int = BATCH, steps: int | None = None) -> None:
    for batch in batches(samples):
        if opt.finished or (steps is not None and opt.global_step >= steps):
            return
        mean_loss(model, batch).backward()
        opt.step(samples=samples)
        opt.zero_grad()


def same(first: nn.Module, second: nn.Module, tolerance: float = 0.0) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)


# ---- equal to ordinary training


@pytest.mark.parametrize("strategy", ["synchronous"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop"])
def test_alone_it_is_the_bare_optimizer_bit_by_bit(host: MakePeer, name: str, strategy: str) -> None:
    make = getattr(torch.optim, name)
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(make(ours.parameters(), lr=0.1), host(strategy=strategy), target_batch_size=BATCH, model=ours)
    plain = make(bare.parameters(), lr=0.1)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert (opt.global_step, opt.finished, opt.dropped_micro_batches) == (STEPS, True, 0)
    assert same(ours, bare)


@pytest.mark.parametrize("micro_batch", [4, 3, 1])
def test_micro_batches_add_up_to_the_whole_batch(host: MakePeer, micro_batch: int) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.5, momentum=0.9), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.5, momentum=0.9)
    train(opt, ours, micro_batch)
    stream = batches(micro_batch)
    for _ in range(STEPS):
        mean_loss(bare, torch.cat(list(itertools.islice(stream, BATCH // micro_batch)))).backward()
        plain.step()
        plain.zero_grad()
    assert opt.global_step == STEPS
    assert same(ours, bare, 1e-6)


def test_micro_batches_of_different_sizes_count_by_their_samples(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.5), host(stop_after_steps=1), model=ours)
    batch = next(batches(BATCH))
    for part in batch.split([7, 1, 4]):
        mean_loss(ours, part).backward()
        opt.step(samples=len(part))
    mean_loss(bare, batch).backward()
    torch.optim.SGD(bare.parameters(), lr=0.5).step()
    assert opt.global_step == 1
    assert same(ours, bare, 1e-6)


def test_the_delayed_strategy_reaches_the_end(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(strategy="delayed"), model=model)
    before = mean_loss(model, next(batches(64))).item()
    train(opt, model, 4)
    assert opt.finished
    assert mean_loss(model, next(batches(64))).item() < before


def test_a_whole_batch_with_a_closure(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = mean_loss(ours, next(batches(BATCH)))
        loss.backward()
        return loss

    with torch.no_grad():
        result = opt.step(closure, samples=BATCH)
    expected = mean_loss(bare, next(batches(BATCH)))
    expected.backward()
    torch.optim.SGD(bare.parameters(), lr=0.1).step()
    assert result.item() == expected.item()
    assert same(ours, bare)


# ---- what torch users do


def test_parameter_groups_keep_their_own_learning_rates(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())

    def groups(model: Any) -> list[dict[str, Any]]:
        return [
            {"params": model[0].parameters(), "lr": 0.5},
            {"params": model[2].parameters(), "lr": 0.01, "momentum": 0.9},
        ]

    opt = minga.Optimizer(torch.optim.SGD(groups(ours), lr=0.1), host(), model=ours)
    plain = torch.optim.SGD(groups(bare), lr=0.1)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.01]
    assert same(ours, bare)


def test_named_parameters_are_accepted(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.named_parameters(), lr=0.1), host())
    train(opt, model)
    assert opt.finished
    assert any(entry.name == "model/2.bias" for entry in opt._replica.capture().tensors)


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_is_harmless_and_not_needed(host: MakePeer, to_none: bool) -> None:
    calling, silent = small_model(), small_model()
    silent.load_state_dict(calling.state_dict())
    first = minga.Optimizer(torch.optim.SGD(calling.parameters(), lr=0.1), host(), model=calling)
    second = minga.Optimizer(torch.optim.SGD(silent.parameters(), lr=0.1), host(), model=silent)
    for batch in itertools.islice(batches(4), 3 * STEPS):
        for model, opt in ((calling, first), (silent, second)):
            mean_loss(model, batch).backward()
            opt.step(samples=4)
            assert all(p.grad is None for p in model.parameters())
        first.zero_grad(set_to_none=to_none)
    assert same(calling, silent)
    mean_loss(calling, next(batches(4))).backward()
    first.zero_grad(set_to_none=to_none)
    assert all((p.grad is None) if to_none else not p.grad.any() for p in calling.parameters())


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=STEPS + 1),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, STEPS)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step()`")
def test_schedulers_advance_once_per_global_step(host: MakePeer, name: str) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    inner, plain = (torch.optim.AdamW(model.parameters(), lr=0.1) for model in (ours, bare))
    scheduler, schedule = SCHEDULES[name](inner), SCHEDULES[name](plain)
    opt = minga.Optimizer(inner, host(), scheduler=scheduler, model=ours)
    stream = batches(BATCH)
    for _ in range(STEPS):
        batch = next(stream)
        for part in batch.split(6):
            mean_loss(ours, part).backward()
            opt.step(samples=6)
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
        schedule.step()
        assert opt.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    assert opt.global_step == STEPS
    assert same(ours, bare, 1e-5)


def test_a_scheduler_that_the_program_steps_too_is_noticed(host: MakePeer) -> None:
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(inner, 0.5)
    opt = minga.Optimizer(inner, host(), scheduler=scheduler, model=model)
    train(opt, model, steps=1)
    scheduler.step()
    with pytest.raises(minga.ConfigurationError, match=r"stepped by the program"):
        train(opt, model)


def test_the_averaged_gradient_is_clipped(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=1.0), host(), model=ours, max_grad_norm=0.01)
    train(opt, ours, steps=1)
    mean_loss(bare, next(batches(BATCH))).backward()
    norm = nn.utils.clip_grad_norm_(bare.parameters(), 0.01)
    torch.optim.SGD(bare.parameters(), lr=1.0).step()
    assert norm > 0.01
    assert same(ours, bare)


def test_state_dict_and_back(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), host(), model=model)
    train(opt, model, steps=2)
    saved = copy.deepcopy(opt.state_dict())
    assert saved["global_step"] == 2
    weights = copy.deepcopy(model.state_dict())
    opt.param_groups[0]["lr"] = 7.0
    for state in opt.state.values():
        state["exp_avg"].zero_()
    opt.load_state_dict(saved)
    assert opt.param_groups is opt.inner.param_groups
    assert opt.state is opt.inner.state
    assert opt.param_groups[0]["lr"] == 0.1
    assert all(state["exp_avg"].any() for state in opt.state.values())
    model.load_state_dict(weights)
    train(opt, model)
    assert opt.finished
    torch.optim.AdamW(model.parameters(), lr=0.1).load_state_dict(saved)  # torch understands it, too


def test_the_state_of_another_step_is_refused(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), host(), model=model)
    saved = opt.state_dict()
    train(opt, model, steps=1)
    with pytest.raises(minga.ConfigurationError, match=r"global step 0, and this peer is at 1"):
        opt.load_state_dict(saved)
    opt.load_state_dict(opt.inner.state_dict())  # one of torch's own has no step


# ---- precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_types(host: MakePeer, dtype: torch.dtype) -> None:
    ours, bare = small_model().to(dtype), small_model().to(dtype)
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.1)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(ours, batch.to(dtype)).backward()
        opt.step(samples=BATCH)
        mean_loss(bare, batch.to(dtype)).backward()
        plain.step()
        plain.zero_grad()
    assert opt.finished
    assert all(p.dtype is dtype for p in ours.parameters())
    assert same(ours, bare, 1e-6 if dtype is torch.float64 else 0.0)


def test_autocast_to_bfloat16(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), host(), model=model)
    for batch in itertools.islice(batches(BATCH), STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mean_loss(model, batch)
        loss.backward()
        opt.step(samples=BATCH, loss=loss)
    assert opt.finished
    assert opt.peer is not None
    assert isinstance(opt.peer._metrics._loss_sum, float)


def test_grad_scaler_leaves_an_overflow_out_and_shrinks_the_scale(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i, batch in enumerate(itertools.islice(batches(BATCH), STEPS + 1)):
        scaler.scale(mean_loss(ours, batch * (torch.inf if i == 1 else 1.0))).backward()
        scaler.step(opt, samples=BATCH)
        scaler.update()
        opt.zero_grad()
        if i == 1:
            continue
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert scaler.get_scale() == 512.0
    assert opt.global_step == STEPS
    assert same(ours, bare)


def test_a_micro_batch_that_is_not_finite_is_dropped(host: MakePeer) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    peer = host(stop_after_steps=1)
    heard: list[Event] = []
    peer.subscribe(heard.append)
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), peer, model=ours)
    batch = next(batches(BATCH))
    for part in (batch[:6], batch * torch.nan, batch[6:]):
        mean_loss(ours, part).backward()
        opt.step(samples=6)
    mean_loss(bare, batch).backward()
    torch.optim.SGD(bare.parameters(), lr=0.1).step()
    assert opt.dropped_micro_batches == 1
    assert [event.fields["samples"] for event in heard if event.kind == "micro_batch.dropped"] == [6]
    assert same(ours, bare, 1e-6)


def test_a_large_matrix_that_is_not_finite_spoils_one_step_at_most(host: MakePeer) -> None:
    model = nn.Linear(300, 300, bias=False)
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(stop_after_steps=3), model=model)
    generator = torch.Generator().manual_seed(1)
    for step in range(40):
        batch = torch.randn(BATCH // 2, 300, generator=generator)
        model(batch * torch.nan if step in (1, 4) else batch).square().mean().backward()
        opt.step(samples=BATCH // 2)
        if opt.finished:
            break
    assert opt.finished
    assert model.weight.isfinite().all()
    assert opt.dropped_micro_batches == 1, "after the first bad sum each micro-batch is looked at"


@pytest.mark.parametrize("codec", ["adaptive", "float16", "bfloat16", "int8"])
def test_lossy_codecs_train_as_well(host: MakePeer, codec: str) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.2), host(codec=codec), model=model)
    before = mean_loss(model, next(batches(64))).item()
    train(opt, model)
    assert mean_loss(model, next(batches(64))).item() < before


# ---- parameters of all kinds


class Odd(nn.Module):
    """A frozen layer, an unused one, a tied weight and an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 2)
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.table = nn.Embedding(5, 6, sparse=True)
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(torch.arange(len(x)) % 3)
        return torch.as_tensor(self.tied(torch.tanh(self.first(self.frozen(x)))) + rows)


def test_frozen_unused_tied_and_sparse_parameters(host: MakePeer) -> None:
    ours, bare = Odd(), Odd()
    bare.load_state_dict(ours.state_dict())
    start = copy.deepcopy(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.1)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert opt.finished
    assert same(ours, bare, 1e-6)
    assert torch.equal(ours.frozen.weight, start["frozen.weight"])
    assert torch.equal(ours.unused.weight, start["unused.weight"])
    assert torch.equal(ours.table.weight[3:], start["table.weight"][3:])
    assert ours.tied.weight is ours.first.weight


def test_a_parameter_used_in_some_micro_batches_only(host: MakePeer) -> None:
    parts = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    bare = copy.deepcopy(parts)
    opt = minga.Optimizer(torch.optim.SGD(parts.parameters(), lr=0.1), host(stop_after_steps=1), model=parts)
    batch = next(batches(BATCH))
    for part, rows in zip(parts, batch.split(6), strict=True):
        part(rows).mean().backward()
        opt.step(samples=6)
    (0.5 * bare[0](batch[:6]).mean() + 0.5 * bare[1](batch[6:]).mean()).backward()
    torch.optim.SGD(bare.parameters(), lr=0.1).step()
    assert opt.global_step == 1
    assert same(parts, bare, 1e-6)


def test_parameters_thawed_later_are_not_trained_on_local_gradients(host: MakePeer) -> None:
    model = small_model()
    model[2].requires_grad_(False)  # type: ignore[index]
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    model[2].requires_grad_(True)  # type: ignore[index]
    before = model[2].weight.clone()  # type: ignore[index]
    train(opt, model)
    assert torch.equal(model[2].weight, before)  # type: ignore[index]


def test_a_compiled_model(host: MakePeer) -> None:
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    opt = minga.Optimizer(torch.optim.SGD(compiled.parameters(), lr=0.1), host(), model=compiled)
    train(opt, compiled)
    assert opt.finished
    assert any(entry.name == "model/2.bias" for entry in opt._replica.capture().tensors)


# ---- buffers


class Normed(nn.Module):
    """BatchNorm, a mask with infinities, a table that is rebuilt, and a counter of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.as_tensor(self.norm(self.inner(x)))


def test_tables_that_each_peer_builds_itself_are_no_averaged_buffers() -> None:
    model = Normed()
    expected = [model.mask, model.norm.running_mean, model.norm.running_var]
    found = averaged_buffers(model)
    assert len(found) == 3
    assert all(any(one is other for other in expected) for one in found)


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_averaged_buffers(host: MakePeer, codec: str) -> None:
    model = Normed()
    mask = model.mask.clone()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(codec=codec), model=model)
    train(opt, model, 4, steps=2)
    assert opt.dropped_micro_batches == 0
    assert model.norm.num_batches_tracked.item() == 2
    assert model.calls.item() == 0
    assert torch.equal(model.mask, mask)
    assert model.norm.running_var.isfinite().all()
    assert model.norm.running_mean.any()


def test_averaged_buffers_of_one_micro_batch_are_those_of_torch(host: MakePeer) -> None:
    ours = Normed()
    bare = copy.deepcopy(ours)
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    train(opt, ours, steps=1)
    mean_loss(bare, next(batches(BATCH)))
    assert torch.allclose(ours.norm.running_mean, bare.norm.running_mean, atol=1e-7)
    assert torch.allclose(ours.norm.running_var, bare.norm.running_var, atol=1e-7)
    assert torch.equal(ours.norm.num_batches_tracked, bare.norm.num_batches_tracked)


def test_a_bad_batch_does_not_spoil_the_statistics(host: MakePeer) -> None:
    model = Normed()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    mean_loss(model, next(batches(BATCH)) * torch.nan).backward()
    opt.step(samples=BATCH)
    assert opt.dropped_micro_batches == 1
    assert model.norm.running_mean.isfinite().all()
    train(opt, model)
    assert opt.finished
    assert opt.dropped_micro_batches == 1


def test_local_buffers_stay_what_the_program_makes_them(host: MakePeer) -> None:
    model = Normed()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(buffers="local"), model=model)
    train(opt, model, 4, steps=2)
    assert model.calls.item() == model.norm.num_batches_tracked.item() == 2 * BATCH // 4
    assert not any("norm.running" in entry.name for entry in opt._replica.capture().tensors)


def test_movements_of_buffers_in_half_precision() -> None:
    model = nn.BatchNorm1d(3).to(torch.bfloat16)
    buffers = SharedBuffers(model)
    model.running_mean.fill_(0.5)
    mean, var = buffers.movements()
    assert mean.dtype is torch.float32
    assert mean.tolist() == [0.5] * 3
    assert not var.any()
    buffers.advance([torch.full((3,), 0.25), torch.zeros(3)])
    assert model.running_mean.tolist() == [0.25] * 3
    assert model.num_batches_tracked.item() == 1


# ---- gradients elsewhere than on the CPU


def test_gradients_are_fetched_in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    vector = ParameterVector(torch.optim.SGD(model.parameters(), lr=0.1), SharedBuffers(None), "float32")
    values = [torch.arange(float(n)) for n in (5, 4, 7, 2)]
    monkeypatch.setattr("minga.training.replica.flat_vector.STAGED_ELEMENTS", 9)
    pieces = [(start, piece.clone()) for start, piece in vector._fetch(list(zip([0, 5, 20, 27], values, strict=True)))]
    assert [start for start, _ in pieces] == [0, 20]
    assert torch.equal(pieces[0][1], torch.cat(values[:2]))
    assert torch.equal(pieces[1][1], torch.cat(values[2:]))


def test_nothing_to_fetch() -> None:
    model = small_model()
    vector = ParameterVector(torch.optim.SGD(model.parameters(), lr=0.1), SharedBuffers(None), "float32")
    assert list(vector._fetch([])) == []


# ---- refused with a reason


@pytest.mark.parametrize("samples", [0, -1, True, 1.5, "8", 1 << 30])
def test_a_number_of_samples_is_needed(host: MakePeer, samples: Any) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    with pytest.raises(minga.ConfigurationError, match=r"step\(samples=\.\.\.\) needs the number of samples"):
        opt.step(samples=samples)
    with pytest.raises(minga.ConfigurationError, match=r"step\(samples=\.\.\.\), or .*samples_per_step=.*integrations"):
        opt.step()
    opt.step(samples=torch.tensor(4))  # any whole number will do


@pytest.mark.parametrize(
    ("loss", "named"), [(torch.ones(3), r"float32 \[3\]"), ([0.5], "a list"), (torch.ones(1) * 1j, "complex64")]
)
def test_a_loss_is_one_number(host: MakePeer, loss: Any, named: str) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    mean_loss(model, next(batches(BATCH))).backward()
    with pytest.raises(minga.ConfigurationError, match=f"one number, got .*{named}"):
        opt.step(samples=BATCH, loss=loss)
    opt.step(samples=BATCH, loss=torch.tensor([[0.5]], dtype=torch.float64))
    assert opt.global_step == 1


def test_the_samples_of_each_step_can_be_told_to_the_constructor(host: MakePeer) -> None:
    model, told = small_model(), iter([4, 8, 0])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(minga.ConfigurationError, match=r"samples_per_step needs the number of samples .* got 0"):
        minga.Optimizer(inner, host(), samples_per_step=0)
    opt = minga.Optimizer(inner, host(), model=model, samples_per_step=lambda: next(told))
    for expected in (4, 8):
        opt.step(lambda: mean_loss(model, next(batches(4))).backward())
        assert opt.last_samples == expected
    assert opt.global_step == 1
    opt.step(samples=BATCH)  # what a call says goes before
    assert (opt.global_step, opt.last_samples) == (2, BATCH)
    with pytest.raises(minga.ConfigurationError, match=r"samples_per_step\(\) needs the number of samples .* got 0"):
        opt.step()


def test_a_loop_that_says_nothing_equals_one_that_does(host: MakePeer) -> None:
    silent, speaking = small_model(), small_model()
    speaking.load_state_dict(silent.state_dict())
    first = minga.Optimizer(torch.optim.SGD(silent.parameters(), lr=0.1), host(), model=silent, samples_per_step=4)
    second = minga.Optimizer(torch.optim.SGD(speaking.parameters(), lr=0.1), host(), model=speaking)
    for batch in itertools.islice(batches(4), 3 * STEPS):
        mean_loss(silent, batch).backward()
        first.step()
        mean_loss(speaking, batch).backward()
        second.step(samples=4)
    assert first.finished
    assert same(silent, speaking)


def refusals() -> dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]]:
    sgd = torch.optim.SGD

    def scheduled(kind: Callable[..., Any]) -> Callable[[nn.Module], dict[str, Any]]:
        def make(model: nn.Module) -> dict[str, Any]:
            inner = sgd(model.parameters(), lr=0.1)
            return {"optimizer": inner, "scheduler": kind(inner)}

        return make

    return {
        "batch size": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "target_batch_size": BATCH + 1},
            r"target_batch_size=13 disagrees with the run spec, which all peers share: 12",
        ),
        "plateau": (scheduled(lr_scheduler.ReduceLROnPlateau), "needs a metric"),
        "scheduler of another": (
            lambda m: {
                "optimizer": sgd(m.parameters(), lr=0.1),
                "scheduler": lr_scheduler.ExponentialLR(sgd(m.parameters(), lr=0.1), 0.5),
            },
            "belongs to another optimizer",
        ),
        "scheduler that is a function": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "scheduler": lambda step: 0.1},
            r"must be a torch LRScheduler, not a function; .*LambdaLR\(optimizer, f\)",
        ),
        "another model": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "model": copy.deepcopy(m)},
            "trains no parameter of model=",
        ),
        "lazy": (
            lambda _: {"optimizer": sgd(nn.LazyLinear(3).parameters(), lr=0.1)},
            "run one forward pass first",
        ),
        "lazy elsewhere": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "model": nn.ModuleList([m, nn.LazyBatchNorm1d()])},
            "run one forward pass first",
        ),
        "lbfgs": (lambda m: {"optimizer": torch.optim.LBFGS(m.parameters())}, "LBFGS evaluates the loss several times"),
        "sparse adam": (lambda m: {"optimizer": torch.optim.SparseAdam(m.parameters())}, "SparseAdam needs sparse"),
        "norm": (lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "max_grad_norm": 0.0}, "no positive number"),
        "frozen": (
            lambda m: {"optimizer": sgd(m.requires_grad_(False).parameters(), lr=0.1)},
            "no parameter that requires a gradient",
        ),
        "complex": (
            lambda m: {"optimizer": sgd([*m.parameters(), nn.Parameter(torch.zeros(2, dtype=torch.complex64))])},
            "is complex",
        ),
        "meta": (lambda m: {"optimizer": sgd(m.to("meta").parameters(), lr=0.1)}, "on the device meta"),
    }


@pytest.mark.parametrize("what", refusals())
def test_what_cannot_be_trained_together_is_refused(host: MakePeer, what: str) -> None:
    make, message = refusals()[what]
    with pytest.raises(minga.ConfigurationError, match=message):
        minga.Optimizer(peer=host(), **make(small_model()))


def test_no_peer_and_no_ranks() -> None:
    with pytest.raises(minga.ConfigurationError, match="peer=None is for ranks other than 0"):
        minga.Optimizer(torch.optim.SGD(small_model().parameters(), lr=0.1), None)


def test_a_second_optimizer_for_one_peer_is_refused(host: MakePeer) -> None:
    first, second = small_model(), small_model()
    peer = host()
    opt = minga.Optimizer(torch.optim.SGD(first.parameters(), lr=0.1), peer, model=first)
    with pytest.raises(minga.ConfigurationError, match="already has an optimizer"):
        minga.Optimizer(torch.optim.SGD(second.parameters(), lr=0.1), peer, model=second)
    with pytest.raises(minga.ConfigurationError, match=r"is a minga\.Optimizer already"):
        minga.Optimizer(opt, peer)
    train(opt, first)
    assert opt.finished


def test_parameters_cannot_be_added(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    with pytest.raises(minga.ConfigurationError, match="parameters cannot be added to a run"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


# ---- pauses, ends and interrupts


def test_following_without_gradients(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    mean_loss(model, next(batches(4))).backward()
    opt.step(samples=4)
    opt.follow(0.05)  # an evaluation, say
    assert opt.global_step == 0
    train(opt, model, 4)
    assert opt.finished
    opt.follow()  # returns at once when the run is over
    mean_loss(model, next(batches(4))).backward()
    opt.step(samples=4)  # and so does this
    assert opt.global_step == STEPS


def left_by(peer: minga.Peer) -> StateSnapshot:
    """The newest checkpoint that a peer has left, of which there has to be one."""
    peer.close()
    checkpoint = peer.newest_checkpoint()
    assert checkpoint is not None
    return checkpoint


def test_the_end_of_the_run_leaves_a_checkpoint(host: MakePeer) -> None:
    model = small_model()
    peer = host()
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model)
    checkpoint = left_by(peer)
    assert checkpoint.step == STEPS


def test_the_last_checkpoint_is_of_the_state_that_this_peer_took_over_in_the_end(
    host: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, is_over, taken = small_model(), Member._is_over, list[str]()
    peer = host()

    async def over(self: Member) -> bool:
        if self._is_finished() and not taken:

            def take_over() -> None:
                with torch.no_grad():
                    next(model.parameters()).add_(1.0)
                self._port.restore(self._replica.capture(), Recovery.FETCH, 0)
                taken.append(self._replica.digest())

            await self._port.request("restore", take_over)
        return await is_over(self)

    monkeypatch.setattr(Member, "_is_over", over)
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model)
    checkpoint = left_by(peer)
    assert checkpoint.step == STEPS
    assert build_manifest(checkpoint).digest == taken[0] == opt.digest()


def test_an_end_that_the_organisers_order_leaves_a_checkpoint(host: MakePeer) -> None:
    model = small_model()
    peer = host(stop_after_steps=None, checkpoint_every=4)
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model, steps=2)
    desk = desk_in(peer, None)
    assert desk.put_in_force(desk.amend({STOP: 6, PAUSED: False}, 0))[1]
    train(opt, model)
    assert opt.finished
    checkpoint = left_by(peer)
    assert checkpoint.step == opt.global_step == 6


def test_a_checkpoint_is_where_the_next_peer_goes_on(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping(
        {"name": "t", "model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH}}
    )
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    first, second = small_model(), small_model()
    with minga.host(spec, options) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(first.parameters(), lr=0.1), peer, model=first)
        train(opt, first, steps=3)
        opt.save_checkpoint()
    with minga.host(spec, options, resume=peer.directory) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(second.parameters(), lr=0.1), peer, model=second)
        assert opt.global_step == 3
        assert same(first, second)
        train(opt, second, steps=4)


def test_a_run_that_was_prolonged_when_all_were_gone_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping(
        {"name": "t", "model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH, "stop_after_steps": 2}}
    )
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    first, second = small_model(), small_model()
    with minga.host(spec, options) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(first.parameters(), lr=0.1), peer, model=first)
        train(opt, first)
        assert (opt.finished, opt.global_step) == (True, 2)
        desk = desk_in(peer, None)
        desk.put_in_force(desk.amend({STOP: 4}, 0))
    with minga.host(spec, options, resume=peer.directory) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(second.parameters(), lr=0.1), peer, model=second)
        train(opt, second)
        assert (opt.finished, opt.global_step) == (True, 4)


def test_a_closed_peer_ends_training(host: MakePeer) -> None:
    model = small_model()
    peer = host(stop_after_steps=None)
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)

    def close_at_two(event: Event) -> None:
        if event.kind == "step.applied" and event.fields["step"] == 2:
            threading.Thread(target=peer.close).start()

    peer.subscribe(close_at_two)
    with pytest.raises(minga.ClosedError, match="closed"):
        train(opt, model)
    with pytest.raises(minga.ClosedError, match="closed"):
        opt.step(samples=4)
    with pytest.raises(minga.ClosedError, match="closed"):
        minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)


def minga_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("minga")}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_waiting_loses_nothing(host: MakePeer) -> None:
    model, others = small_model(), minga_threads()
    peer = host()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        opt.follow()
    train(opt, model)
    assert opt.finished
    peer.close()
    assert minga_threads() <= others


class Interrupted(torch.optim.SGD):
    """Its second step is interrupted."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt
        return super().step(closure)


def test_an_interrupt_in_the_middle_of_an_update_ends_the_peer(host: MakePeer) -> None:
    model, others = small_model(), minga_threads()
    peer = host()
    opt = minga.Optimizer(Interrupted(model.parameters(), lr=0.1), peer, model=model)
    with pytest.raises(KeyboardInterrupt):
        train(opt, model)
    with pytest.raises(minga.ClosedError, match="could not apply"):
        train(opt, model)
    peer.close()
    assert minga_threads() <= others


def test_an_error_of_the_torch_optimizer_ends_the_peer(host: MakePeer) -> None:
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(inner, max_lr=0.5, total_steps=2)
    opt = minga.Optimizer(inner, host(), scheduler=scheduler, model=model)
    with pytest.raises(ValueError, match="Tried to step 3 times"):
        train(opt, model)
    with pytest.raises(minga.ClosedError, match=r"could not apply .*Tried to step 3 times"):
        train(opt, model)


def test_a_program_may_leave_while_it_is_told_to_compute_nothing(host: MakePeer) -> None:
    model, asked = small_model(), list[int]()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    assert isinstance(opt._port, GradientPort)
    opt._port.hold(holding=True)
    opt.is_leaving = lambda: bool(asked.append(opt.global_step) or len(asked) == 3)
    mean_loss(model, next(batches(BATCH))).backward()
    opt.step(samples=BATCH)
    assert asked == [1, 1, 1], "the step to which it gave something was taken before"


def test_an_interrupted_micro_batch_does_not_count_half(host: MakePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(stop_after_steps=1), model=ours)

    def interrupted(vector: torch.Tensor, weight: float) -> bool:
        vector.add_(weight)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opt._replica, "accumulate", interrupted)
        mean_loss(ours, next(batches(BATCH))).backward()
        with pytest.raises(KeyboardInterrupt):
            opt.step(samples=BATCH)
    opt.zero_grad()
    train(opt, ours)
    mean_loss(bare, next(batches(BATCH))).backward()
    torch.optim.SGD(bare.parameters(), lr=0.1).step()
    assert same(ours, bare)


# ---- two peers in one process


def live_together(first: minga.Peer, join: Callable[[], minga.Peer], models: list[nn.Module]) -> list[minga.Optimizer]:
    """Train in two threads: the second peer joins when the first is ready, and both begin when it has the state."""
    optimizers: list[minga.Optimizer] = []
    errors: list[BaseException] = []
    hosting, together = threading.Event(), threading.Event()

    def live(i: int, samples: int) -> None:
        try:
            if i:
                hosting.wait(20)
            inner = torch.optim.AdamW(models[i].parameters(), lr=0.05)
            scheduler = lr_scheduler.ExponentialLR(inner, 0.9)
            opt = minga.Optimizer(inner, join() if i else first, scheduler=scheduler, model=models[i])
            optimizers.append(opt)
            (together if i else hosting).set()
            while not together.is_set():
                opt.follow(0.01)
            train(opt, models[i], samples)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(i, samples), daemon=True) for i, samples in ((0, 4), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    return optimizers


@pytest.mark.parametrize(("strategy", "buffers"), [("synchronous", "average"), ("delayed", "local")])
def test_two_peers_hold_the_same_model(host: MakePeer, tmp_path: Path, strategy: str, buffers: str) -> None:
    first = host(strategy=strategy, buffers=buffers, target_batch_size=32, stop_after_steps=60)
    heard: list[Event] = []
    first.subscribe(heard.append)
    joined: list[minga.Peer] = []

    def join() -> minga.Peer:
        options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
        joined.append(minga.join(str(first.link), options))
        joined[-1].subscribe(heard.append)
        return joined[-1]

    try:
        one, other = live_together(first, join, [Normed(), Normed()])
    finally:
        for peer in joined:
            peer.close()
    assert one.finished
    assert other.finished
    assert one._replica.digest() == other._replica.digest()
    assert [event for event in heard if event.kind == "step.applied" and event.fields["members"] == 2]
    assert not [event for event in heard if event.kind in ("member.diverged", "member.failed")]


def refused_newcomers() -> dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]]:
    adamw = torch.optim.AdamW

    def wide(_: nn.Module) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
        return {"optimizer": adamw(model.parameters()), "model": model}

    def frozen(model: nn.Module) -> dict[str, Any]:
        model[0].requires_grad_(False)  # type: ignore[index]
        return {"optimizer": adamw(model.parameters())}

    return {
        "shape": (wide, "0.weight is float32 [5, 6] in the run and float32 [7, 6] here (2 others differ)"),
        "frozen": (frozen, "0.bias is trained in the run and frozen here (1 other differs)"),
        "class": (lambda m: {"optimizer": torch.optim.SGD(m.parameters())}, "AdamW, and the optimizer here is SGD"),
        "norm": (lambda m: {"optimizer": adamw(m.parameters()), "max_grad_norm": 0.1}, "and here it is 0.1"),
    }


def test_a_newcomer_with_what_does_not_fit_gets_one_clear_error(host: MakePeer, tmp_path: Path) -> None:
    """Another shape named a bias first, and came with fifty lines of the inner workings of the peer; what does not show
    in shapes was taken, and dragged the run to the newcomer's state.
    """
    first, left = host(stop_after_steps=None), threading.Event()

    def live() -> None:
        model = small_model()
        opt = minga.Optimizer(torch.optim.AdamW(model.parameters()), first, model=model)
        train(opt, model, steps=1)
        while not left.is_set():
            opt.follow(0.05)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    caught: dict[str, BaseException] = {}
    try:
        for what, (make, _) in refused_newcomers().items():
            model = small_model()
            options = minga.PeerOptions(ephemeral=True, directory=tmp_path / what, host="127.0.0.1")
            options.directory.mkdir()
            with minga.join(str(first.link), options) as guest, pytest.raises(minga.LocalError) as error:
                minga.Optimizer(**{"peer": guest, "model": model, **make(model)})
            caught[what] = error.value
    finally:
        left.set()
        thread.join(40)
    for what, (_, message) in refused_newcomers().items():
        assert message in str(caught[what])
        assert len(traceback.format_exception(caught[what])) < 10
