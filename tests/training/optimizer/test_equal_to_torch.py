"""One peer alone, with a real event loop, equals the bare torch optimizer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga import optim
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, batches, mean_loss, same, small_model, train


def sgd_by_layers(model: Any) -> torch.optim.Optimizer:
    """Each layer in a group with settings of its own."""
    first, second = ({"params": model[place].parameters()} for place in (0, 2))
    return torch.optim.SGD([{**first, "lr": 0.5}, {**second, "lr": 0.01, "momentum": 0.9}])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """One group."""
    return torch.optim.AdamW(model.parameters(), lr=0.1)


@pytest.mark.parametrize("make", [sgd_by_layers, adamw])
def test_alone_it_is_the_bare_optimizer_bit_by_bit(
    host: MakePeer, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt, plain = minga.Optimizer(make(ours), host(), target_batch_size=BATCH, model=ours), make(bare)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert (opt.global_step, opt.finished, opt.dropped_micro_batches) == (STEPS, True, 0)
    assert [group["lr"] for group in opt.param_groups] == [group["lr"] for group in plain.param_groups]
    assert same(ours, bare)


class Experts(nn.Module):
    """Experts, of which each batch uses one, and a low-rank pair whose first half begins with gradients of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)])
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 3, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.experts[int(x[0, 0] > 0)]
        return torch.as_tensor(chosen(x) + self.up(self.down(x)))


@pytest.mark.parametrize("make", [torch.optim.AdamW, optim.AdamW], ids=["torch", "minga"])
def test_what_nobody_used_is_left_alone_and_a_gradient_of_zeros_is_no_missing_one(
    host: MakePeer, make: Callable[..., torch.optim.Optimizer]
) -> None:
    """By zeros an optimizer decays a parameter and moves its moments; without a gradient it does neither."""
    ours = Experts()
    bare, start = copy.deepcopy(ours), copy.deepcopy(ours)
    opt = minga.Optimizer(make(ours.parameters(), lr=0.05, weight_decay=0.5), host(stop_after_steps=8), model=ours)
    plain = make(bare.parameters(), lr=0.05, weight_decay=0.5)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), 8):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert opt.finished
    assert [len(opt.state[expert.weight]) > 0 for expert in ours.experts] == [True, True, False]
    assert torch.equal(ours.experts[2].weight, start.experts[2].weight)
    assert same(ours, bare)


@pytest.mark.parametrize("sizes", [[1] * BATCH, [7, 1, 4]], ids=str)
def test_micro_batches_add_up_to_the_whole_batch_by_their_samples(host: MakePeer, sizes: list[int]) -> None:
    ours, bare = small_model(), small_model()
    bare.load_state_dict(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.5, momentum=0.9), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.5, momentum=0.9)
    for batch in itertools.islice(batches(BATCH), STEPS):
        for part in batch.split(sizes):
            mean_loss(ours, part).backward()
            opt.step(samples=len(part))
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert opt.global_step == STEPS
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
