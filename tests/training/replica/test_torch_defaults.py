"""A program that sets other defaults of torch trains as one that does not, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.optim import LAMB, LARC, LARS, SGD, AdamW, MomentStorage, Muon, muon_groups
from minga.training.replica.replica import Replica
from tests.worlds.script_peers import Machine, run_scripts, spec_of
from tests.worlds.torch_defaults import defaults

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda model: AdamW(model.parameters(), lr=0.01),
    "adamw in 8 bits": lambda model: AdamW(model.parameters(), lr=0.01, storage=MomentStorage(8, 16, 4)),
    "lamb": lambda model: LAMB(model.parameters(), lr=0.01),
    "lars": lambda model: LARS(model.parameters(), lr=0.01),
    "larc": lambda model: LARC(model.parameters(), lr=0.01),
    "muon": lambda model: Muon(muon_groups(model), lr=0.01),
}


def network() -> nn.Module:
    """On the CPU, in float32 and with buffers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3), nn.Linear(3, 3)).float()
    chance = torch.Generator(device="cpu").manual_seed(7)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.uniform_(-0.4, 0.4, generator=chance)
    return model


def batch(seed: int) -> torch.Tensor:
    chance = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(5, 6, generator=chance, dtype=torch.float32, device="cpu")


def trained(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer], sketch: str) -> list[str]:
    """The digests of some steps, and of a newcomer that takes the third state over."""
    spec = spec_of(4, 20, averaging={"codec": "int8", "sketch": sketch}, training={"buffers": "average"})
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    replica, found = Replica(spec, optimizer, model=model, scheduler=scheduler, max_grad_norm=1.0), []
    for step in range(1, 6):
        total = replica.new_sum()
        for part in range(2):
            model(batch(2 * step + part)).square().mean().backward()
            assert total.add(1.0)
            replica.zero_grad()
        given = replica.project(total.vector() / 2, 1, step - 1, f"round {step}")
        assert given is not None
        replica.apply(replica.expand(given, step - 1, counted_in=f"round {step}"), step)
        found.append(replica.digest())
        if step == 3:
            third = replica.capture()
    replica.restore(third)
    return [*found, replica.digest()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_peer_has_the_same_states(name: str) -> None:
    sketch = "dct64" if name == "sgd" else "identity"
    models = network(), network()
    usual = trained(models[0], OPTIMIZERS[name], sketch)
    with defaults(torch.float64, "meta"):
        assert trained(models[1], OPTIMIZERS[name], sketch) == usual
    assert len(set(usual)) == 5


@pytest.mark.parametrize("strategy", ["local", "leader"])
def test_a_program_whose_device_is_another_one_trains_with_the_others(strategy: str, tmp_path: Path) -> None:
    def script(device: str, machine: Machine) -> Any:
        model = network()
        torch.set_default_device(device)  # for this thread, as for that of a program
        optimizer = minga.Optimizer(SGD(model.parameters(), lr=0.1), machine.peer, model=model)
        machine.meet(optimizer)
        for seed in range(10_000):
            loss = model(batch(seed)).square().mean()
            loss.backward()
            optimizer.step(samples=4, loss=loss)
            if optimizer.finished:
                return optimizer.digest()
        raise AssertionError

    spec = spec_of(8, 3, training={"strategy": strategy})
    with defaults(torch.float64, "cpu"):
        found = run_scripts(spec, [partial(script, "meta"), partial(script, "cpu")], tmp_path)
    assert isinstance(found[0], str), found
    assert found[0] == found[1]
