"""What a machine holds in RAM with each strategy, counted while it trains, is no more than what is foreseen."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.optim import SGD, AdamW
from minga.planner.device_memory import PassMemory, device_memory, state_bytes
from minga.planner.model_facts import ModelFacts
from minga.recipes.counting import LiveBytes
from minga.training.replica.replica import Replica
from minga.training.strategy.interface import Strategy

WIDTH, LAYERS = 256, 4
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "synchronous": ("synchronous", {}),
    "delayed": ("delayed", {}),
    "local": ("local", {}),
    "overlapped": ("local", {"overlap": True}),
    "elastic": ("elastic", {}),
    "leader": ("leader", {}),
    "demo": ("demo", {}),
}


def spec_of(kind: str) -> RunSpec:
    name, table = KINDS[kind]
    optimizer = {"name": "sgd", "momentum": 0.0, "max_grad_norm": "off"} if kind == "demo" else {"name": "adamw"}
    tables = {"strategy": {name: table}} if table else {}
    return RunSpec.from_mapping(
        {
            "name": "memory",
            "model": {"recipe": "custom"},
            "optimizer": optimizer,
            "training": {"strategy": name},
            **tables,
        }
    )


def take_rounds(replica: Replica, strategy: Strategy, model: torch.nn.Module) -> None:
    """Two rounds of three micro-batches; one more is computed before the mean of each is absorbed, where that is so."""
    for round in (1, 2):
        for _ in range(3):
            compute(replica, strategy, model)
        strategy.close()
        vector, _ = strategy.contribution()
        assert vector is not None
        if strategy.facts.max_in_flight:
            compute(replica, strategy, model)
        mean = torch.empty_like(vector).copy_(vector).mul_(0.5)
        strategy.absorb(round, mean, ContributionFate.COUNTED)
        del mean, vector


def compute(replica: Replica, strategy: Strategy, model: torch.nn.Module) -> None:
    model(torch.ones(2, WIDTH)).square().mean().backward()
    strategy.note_loss(1.0)
    assert strategy.micro_batch(2)
    strategy.count(2)
    replica.zero_grad()


@pytest.mark.parametrize(
    ("kind", "offload"), [*((kind, False) for kind in KINDS), ("synchronous", True), ("overlapped", True)]
)
def test_what_is_foreseen_is_what_a_strategy_holds(kind: str, offload: bool) -> None:
    """All is in RAM here, the device's part included: parameters, which were there before, and gradients."""
    spec = spec_of(kind)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    tensors = tuple(each.numel() for each in model.parameters())
    with LiveBytes() as found:
        for tensor in model.parameters():
            found.know(tensor)
        make = SGD if kind == "demo" else AdamW
        inner = make(model.parameters(), lr=0.01)
        replica = Replica(spec, inner, model=model, offload=offload)
        choice = StrategyChoice.of(spec)
        strategy = choice.kind(threading.Condition(), unit=1, settings=choice.settings)
        strategy.begin(replica)
        take_rounds(replica, strategy, model)
    facts = ModelFacts("memory", tensors, 1.0, 1, None, "a test")
    gradients = 4.0 * sum(tensors)
    passes = PassMemory(((1, gradients), (2, gradients)))
    foreseen = device_memory(facts, spec.optimizer, choice, passes, offload=offload)
    whole = foreseen.ram + (gradients if offload else foreseen.moments + foreseen.update)
    inside = 8.0 * max(tensors)  # what an operation on one tensor takes for itself
    assert found.peak <= 1.02 * whole + inside, f"{found.peak / gradients:.2f} of {whole / gradients:.2f} vectors"
    assert found.peak >= 0.6 * whole, f"{found.peak / gradients:.2f} of {whole / gradients:.2f} vectors"
    newcomer = state_bytes(tensors, spec.optimizer, choice)
    assert replica.capture().buffer.numel() == pytest.approx(newcomer, rel=1e-3)  # beside it, the optimizer's counts
