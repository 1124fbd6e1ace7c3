"""Loops of public scripts in other shapes: accumulation, an adapter on a frozen model, a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS, SAMPLES = 4, 4


class LowRank(nn.Module):
    """A linear layer that is frozen, and a low-rank pair beside it, as in PEFT."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        with torch.no_grad():
            self.down.weight.fill_(0.1)
            self.up.weight.zero_()  # so its partner has gradients of zeros at first, and decays all the same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.base(x) + self.up(self.down(x)))


def plain() -> nn.Module:
    return network()


def adapted() -> nn.Module:
    layers = network()
    return nn.Sequential(*(LowRank(each) if isinstance(each, nn.Linear) else each for each in layers))


def compiled() -> nn.Module:
    return torch.compile(network(), backend="eager")  # type: ignore[return-value]


def at_once(model: nn.Module, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()


def accumulated(model: nn.Module, batch: torch.Tensor) -> None:
    for half in batch.split(SAMPLES // 2):
        (model(half).square().mean() / 2).backward()


SHAPES = {
    "accumulation": (plain, accumulated),
    "adapter": (adapted, at_once),
    "compiled": (compiled, at_once),
}


def train(machine: Machine, make: Callable[[], nn.Module], backward: Callable[..., None]) -> Any:
    model = make()
    inner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    optimizer = minga.Optimizer(inner, machine.peer, model=model)
    machine.meet(optimizer)
    for batch in machine.batches(SAMPLES):
        backward(model, batch)
        optimizer.step(samples=SAMPLES)
        optimizer.zero_grad()
        if optimizer.finished:
            return values(model), optimizer.digest()
    raise AssertionError


@pytest.fixture(autouse=True)
def _compiler_forgets() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("shape", SHAPES)
def test_alone_a_loop_equals_torch(tmp_path: Path, shape: str) -> None:
    make, backward = SHAPES[shape]
    ((found, _),) = run_scripts(spec_of(SAMPLES, STEPS), [lambda machine: train(machine, make, backward)], tmp_path)
    model = make()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    for _, batch in zip(range(STEPS), batches_of(0, SAMPLES), strict=False):
        backward(model, batch)
        optimizer.step()
        optimizer.zero_grad()
    assert found == values(model)


@pytest.mark.parametrize("shape", SHAPES)
def test_peers_come_to_one_end(tmp_path: Path, shape: str) -> None:
    make, backward = SHAPES[shape]
    found = run_scripts(spec_of(12, STEPS), [lambda machine: train(machine, make, backward)] * 3, tmp_path)
    assert len({digest for _, digest in found}) == 1
    assert all(each == found[0][0] for each, _ in found)
