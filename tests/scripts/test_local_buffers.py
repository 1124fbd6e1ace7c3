"""Buffers that each peer keeps for itself, of a program that joins late."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

import minga
from tests.worlds.script_peers import Machine, run_scripts, spec_of


def test_a_newcomer_is_told_of_statistics_that_have_seen_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a pretrained norm have, and a constant never does."""
    has_trained, has_entered = threading.Event(), threading.Event()

    def begin(machine: Machine) -> minga.Optimizer:
        torch.manual_seed(3)
        model = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        model[1].running_mean.fill_(9.0)
        model.register_buffer("positions", torch.arange(6.0))
        opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), machine.peer, model=model)
        for batch in machine.batches(4):
            if opt.global_step >= 2:
                return opt
            model(batch).square().mean().backward()
            opt.step(samples=4)
        raise AssertionError

    def first(machine: Machine) -> Any:
        opt = begin(machine)
        has_trained.set()
        while not has_entered.is_set():
            opt.follow(0.02)
        return opt._replica.own_buffers()

    def newcomer(machine: Machine) -> Any:
        assert has_trained.wait(40)
        try:
            return begin(machine)._replica.own_buffers()
        finally:
            has_entered.set()

    with caplog.at_level(logging.WARNING, "minga"):
        trained, new = run_scripts(spec_of(4, None, training={"buffers": "local"}), [first, newcomer], tmp_path)
    assert b"0.running_mean" in trained
    assert not load(new)["0.running_mean"].any()  # who goes on with that is told again
    told = [each.getMessage() for each in caplog.records]
    assert len([each for each in told if "the buffer 0.running_mean is 0" in each]) == 1
