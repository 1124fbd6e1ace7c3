"""Loops that set the learning rate themselves, in the shapes of nanoGPT and of others."""

from __future__ import annotations

import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS, WARMUP = 6, 2


def rate_at(step: int) -> float:
    """A warm-up, then half a cosine."""
    if step < WARMUP:
        return 0.2 * (step + 1) / (WARMUP + 1)
    return 0.02 + 0.09 * (1.0 + math.cos(math.pi * (step - WARMUP) / STEPS))


def loop(machine: Machine, *, by: str, samples: int = 4, is_met: bool = False) -> Any:
    """The loop of nanoGPT: a rate for each iteration, or for each global step. If it `is_met`, the others wait for what
    it gives first.
    """
    model = network()
    optimizer = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), machine.peer, model=model)
    machine.meet(optimizer)
    rates: list[float] = []
    for iteration, batch in enumerate(machine.batches(samples)):
        rate = rate_at(optimizer.global_step if by == "global step" else iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        model(batch).square().mean().backward()
        optimizer.step(samples=samples)
        optimizer.zero_grad(set_to_none=True)
        rates.append(optimizer.param_groups[0]["lr"])
        if is_met and iteration == 0:
            machine.meet(optimizer)
        if optimizer.finished:
            return {"values": values(model), "digest": optimizer.digest(), "last": rates[-1]}
    raise AssertionError


def test_alone_a_loop_that_sets_rates_equals_torch(tmp_path: Path) -> None:
    (found,) = run_scripts(spec_of(4, STEPS), [lambda machine: loop(machine, by="iteration")], tmp_path)
    model = network()
    plain = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
        plain.param_groups[0]["lr"] = rate_at(step)
        model(batch).square().mean().backward()
        plain.step()
        plain.zero_grad()
    assert found["values"] == values(model)


def test_the_rate_of_the_organisers_loop_is_that_of_all(tmp_path: Path) -> None:
    """The others may do nothing about it, as who only follows does. In a step to which the organiser gave nothing the
    rate stays.
    """

    def follow(machine: Machine) -> Any:
        model = network()
        optimizer = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), machine.peer, model=model)
        for _ in range(2):
            machine.meet(optimizer)
        optimizer.follow()
        return {"values": values(model), "digest": optimizer.digest(), "last": optimizer.param_groups[0]["lr"]}

    def train(machine: Machine) -> Any:
        return loop(machine, by="global step", is_met=True)

    found = run_scripts(spec_of(12, STEPS), [train, train, follow], tmp_path)
    assert not [each for each in found if isinstance(each, Exception)]
    assert {each["last"] for each in found} == {found[0]["last"]}
    assert found[0]["last"] in [rate_at(step) for step in range(STEPS)]
    assert {each["digest"] for each in found} == {found[0]["digest"]}


@pytest.mark.parametrize(
    ("samples", "said"),
    [(4, "the loop sets the learning rate to"), (12, "the loop set the learning rate to")],
    ids=["within a step", "from step to step"],
)
def test_a_loop_that_counts_its_own_iterations_is_refused_with_what_to_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, samples: int, said: str
) -> None:
    """The host gives nothing before that: a guest that finds no work, because others are faster, does no harm."""
    refused = threading.Event()

    def constant(machine: Machine) -> Any:
        model = network()
        optimizer = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), machine.peer, model=model)
        machine.meet(optimizer)
        while not refused.is_set():
            optimizer.follow(0.01)
        for batch in machine.batches(4):
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                return optimizer.param_groups[0]["lr"]
        raise AssertionError

    def wrong(machine: Machine) -> Any:
        try:
            return loop(machine, by="iteration", samples=samples)
        finally:
            refused.set()

    with caplog.at_level(logging.WARNING, "minga"):
        host, guest = run_scripts(spec_of(12, STEPS), [constant, wrong], tmp_path)
    assert host == 0.1
    assert isinstance(guest, minga.ConfigurationError)
    assert str(guest).startswith(said)
    assert "scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor)" in str(guest)
    assert len([each for each in caplog.records if "the run's numbers count" in each.message]) == 1
