"""Loops of public scripts in other shapes: an adapter on a frozen model, a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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


def adapted() -> nn.Module:
    layers = network()
    return nn.Sequential(*(LowRank(each) if isinstance(each, nn.Linear) else each for each in layers))


def compiled() -> nn.Module:
    return torch.compile(network(), backend="eager")  # type: ignore[return-value]


SHAPES = {"adapter": adapted, "compiled": compiled}


def train(machine: Machine, make: Callable[[], nn.Module]) -> Any:
    model = make()
    inner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    optimizer = minga.Optimizer(inner, machine.peer, model=model)
    machine.meet(optimizer)
    for batch in machine.batches(SAMPLES):
        model(batch).square().mean().backward()
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
    ((found, _),) = run_scripts(spec_of(SAMPLES, STEPS), [partial(train, make=SHAPES[shape])], tmp_path)
    model = SHAPES[shape]()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    for _, batch in zip(range(STEPS), batches_of(0, SAMPLES), strict=False):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found == values(model)


@pytest.mark.parametrize("shape", SHAPES)
def test_peers_come_to_one_end(tmp_path: Path, shape: str) -> None:
    found = run_scripts(spec_of(8, STEPS), [partial(train, make=SHAPES[shape])] * 2, tmp_path)
    assert len({digest for _, digest in found}) == 1
    assert all(each == found[0][0] for each, _ in found)
