"""Parameters and gradients of other formats than float32, and those that are not finite."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import minga
from minga.core.events.bus import Event
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, batches, mean_loss, same, small_model


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
