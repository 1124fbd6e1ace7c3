"""Scripts with several optimizers: of one model, as Muon beside AdamW, and of several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS = 5


class Both(torch.optim.Optimizer):
    """Several optimizers as one, as docs/trainers.md has it."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        for each in optimizers:
            each.state = self.state

    def step(self, closure: Any = None) -> None:
        for each in self.optimizers:
            each.step()


def both(model: torch.nn.Module) -> Both:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return Both(torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.05))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_muon_beside_adamw_in_one_class(tmp_path: Path, count: int) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        optimizer = minga.Optimizer(both(model), machine.peer, model=model)
        machine.meet(optimizer)
        for batch in machine.batches(4):
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                return values(model), optimizer.digest(), len(optimizer.state)
        raise AssertionError

    found = run_scripts(spec_of(4 if count == 1 else 12, STEPS), [train] * count, tmp_path)
    assert len({digest for _, digest, _ in found}) == 1
    assert {kept for _, _, kept in found} == {4}
    if count == 1:
        model = network()
        plain = both(model)
        for _, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
            model(batch).square().mean().backward()
            plain.step()
            plain.zero_grad()
        assert found[0][0] == values(model)


def test_a_second_optimizer_of_a_peer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        first, second = torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.1)
        minga.Optimizer(first, machine.peer)
        minga.Optimizer(second, machine.peer)

    (error,) = run_scripts(spec_of(4, STEPS), [train], tmp_path)
    assert isinstance(error, minga.ConfigurationError)
    assert "one class that holds both" in str(error)
    assert "docs/trainers.md" in str(error)
