"""What programs do with an optimizer of torch, they do with `minga.Optimizer`: groups, schedules, clipping, states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import minga
from minga.training.replica.replica import EMPTY_IN_ROW
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, batches, mean_loss, same, small_model, train

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=STEPS + 1),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, STEPS)], [2]
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
    mean_loss(ours, next(batches(BATCH))).backward()
    opt.zero_grad(set_to_none=False)
    assert [each.grad is not None and not each.grad.any() for each in ours.parameters()] == [True] * 4
    opt.zero_grad()
    assert [each.grad for each in ours.parameters()] == [None] * 4


@pytest.mark.parametrize(("norm", "is_told"), [(0.5, True), (1.0, False), ("off", False)])
def test_a_loop_that_does_not_clip_as_the_run_spec_says_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, norm: float | str, is_told: bool
) -> None:
    """1.0 is the default, of which no peer knows whether it was said."""
    sections = {"model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH}}
    spec = minga.RunSpec.from_mapping({"name": "t", **sections, "optimizer": {"max_grad_norm": norm}})
    model = small_model()
    with minga.host(spec, minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")) as peer:
        minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
    assert ("max_grad_norm=0.5), on all peers" in caplog.text) == is_told


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


def test_steps_without_any_gradient_are_told_and_then_refused(host: MakePeer, caplog: pytest.LogCaptureFixture) -> None:
    """As where `zero_grad()` comes before `step()`."""
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(stop_after_steps=50), model=model)
    stream = batches(BATCH)
    for _ in range(EMPTY_IN_ROW - 1):
        mean_loss(model, next(stream)).backward()
        opt.zero_grad()
        opt.step(samples=BATCH)
    assert sum("step() found no gradient at all" in each for each in caplog.messages) == 1
    train(opt, model, steps=opt.global_step + 1)  # the count begins anew
    for _ in range(EMPTY_IN_ROW - 1):
        opt.step(samples=BATCH)
    with pytest.raises(minga.ConfigurationError, match="zero_grad\\(\\) after it"):
        opt.step(samples=BATCH)
