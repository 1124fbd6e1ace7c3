"""What a program does to parameters that the run trains is told at the next micro-batch, and nothing else is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

from minga.training.replica.replica import Replica
from tests.worlds.pretend_device import pretend, pretended_device
from tests.worlds.swarm_tools import make_spec

CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "loaded": lambda model: model.load_state_dict({n: v + 1.0 for n, v in model.state_dict().items()}),
    "clamped": lambda model: [each.data.clamp_(-0.01, 0.01) for each in model.parameters()],
}


def micro_batch(one: Replica) -> None:
    for parameter in one.vector.parameters():
        parameter.grad = torch.ones_like(parameter)
    one.collect(4)


@pytest.mark.parametrize("where", ["ram", "device", "offload"])
@pytest.mark.parametrize("change", CHANGES)
def test_trained_values_that_a_program_changes_are_told_once(
    where: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pretended_device() if where == "device" else contextlib.nullcontext():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 50), nn.Linear(50, 3))
        model = pretend(net) if where == "device" else net
        inner = torch.optim.Adam(model.parameters(), lr=0.1, foreach=False)
        one = Replica(make_spec(4), inner, model=model, offload=where == "offload")
        with caplog.at_level(logging.WARNING, "minga"):
            micro_batch(one)
            one.apply(torch.ones(one.vector.numel), 1)
            micro_batch(one)
            one.inner_step()
            micro_batch(one)
            one.write_values(one.read_values() * 0.5)
            one.apply(torch.ones(one.vector.numel), 2)
            one.restore(one.capture())
            micro_batch(one)
            micro_batch(one)
            assert not caplog.messages
            one.apply(torch.ones(one.vector.numel), 3)
            CHANGES[change](model)
            micro_batch(one)
            micro_batch(one)
            one.apply(torch.ones(one.vector.numel), 4)
            CHANGES[change](model)
            micro_batch(one)
    (heard,) = caplog.messages
    assert "the program changed parameters that the run trains" in heard


def test_values_that_a_program_changes_within_a_step_are_told_before_the_update(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Linear(6, 3)
    one = Replica(make_spec(4), torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    micro_batch(one)
    CHANGES["loaded"](model)
    with caplog.at_level(logging.WARNING, "minga"):
        one.apply(torch.ones(one.vector.numel), 1)
    assert len(caplog.messages) == 1
