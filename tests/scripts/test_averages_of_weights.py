"""Averages of the weights and target networks, which follow the trained parameters without being trained."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import minga
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS = 5


def averaged(net: nn.Module) -> AveragedModel:
    return AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def train(machine: Machine, samples: int = 4) -> Any:
    """The average is part of model=, and is updated by after_update=. Each begins with weights of its own."""
    net = network(machine.number)
    both = nn.ModuleDict({"net": net, "ema": averaged(net)})
    inner = torch.optim.AdamW(net.parameters(), lr=0.1)
    optimizer = minga.Optimizer(
        inner, machine.peer, model=both, after_update=lambda: both["ema"].update_parameters(net)
    )
    machine.meet(optimizer)
    for batch in machine.batches(samples):
        net(batch).square().mean().backward()
        optimizer.step(samples=samples)
        if optimizer.finished:
            return {"values": values(both), "digest": optimizer.digest(), "updates": int(both["ema"].n_averaged)}
    raise AssertionError


def test_alone_an_average_equals_that_of_a_plain_loop(tmp_path: Path) -> None:
    (found,) = run_scripts(spec_of(4, STEPS), [train], tmp_path)
    net = network()
    ema, plain = averaged(net), torch.optim.AdamW(net.parameters(), lr=0.1)
    for _, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
        net(batch).square().mean().backward()
        plain.step()
        plain.zero_grad()
        ema.update_parameters(net)
    assert found["values"] == [*values(net), *values(ema)]


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_an_average_is_the_same_on_all_peers(tmp_path: Path, strategy: str) -> None:
    spec = spec_of(12, STEPS, training={"strategy": strategy})
    found = run_scripts(spec, [train] * 2, tmp_path)
    assert not [each for each in found if isinstance(each, Exception)]
    assert {each["digest"] for each in found} == {found[0]["digest"]}
    assert {tuple(each["values"]) for each in found} == {tuple(found[0]["values"])}
    assert {each["updates"] for each in found} == {STEPS}


def test_what_the_loop_changes_beside_the_run_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def by_loop(machine: Machine) -> Any:
        net = network()
        both = nn.ModuleDict({"net": net, "target": copy.deepcopy(net), "ema": averaged(net)})
        inner = torch.optim.AdamW(net.parameters(), lr=0.1)
        optimizer = minga.Optimizer(inner, machine.peer, model=both)
        for batch in machine.batches(4):
            net(batch).square().mean().backward()
            optimizer.step(samples=4)
            both["ema"].update_parameters(net)
            for target, source in zip(both["target"].parameters(), net.parameters(), strict=True):
                target.data.copy_(0.9 * target.data + 0.1 * source.data)
            if optimizer.finished:
                return True
        raise AssertionError

    with caplog.at_level(logging.WARNING, "minga"):
        assert run_scripts(spec_of(4, STEPS), [by_loop], tmp_path) == [True]
    told = [each.getMessage() for each in caplog.records]
    assert len([each for each in told if "is frozen in the run, and this program changed its values" in each]) == 1
    assert len([each for each in told if "the buffer ema.n_averaged" in each]) == 1
    assert all("after_update=" in each for each in told)
