"""Schedules of scripts that were written for another number of steps than the run has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import minga
from minga.training.replica.replica import Replica
from minga.training.replica.schedule import Schedule
from tests.worlds.script_peers import Machine, network, run_scripts, spec_of
from tests.worlds.seeds import soaked

STEPS = 8
RATES = [1.0, 0.5, 0.25]
SHORT: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=4),
    "list": lambda o: lr_scheduler.LambdaLR(o, lambda step: RATES[step]),
    "warm-up, then one cycle": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=3)],
        [2],
    ),
}


@pytest.mark.parametrize("name", [soaked("one cycle"), "list", "warm-up, then one cycle"])
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step()`")
def test_beyond_the_end_of_a_schedule_its_last_rate_is_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        inner = torch.optim.AdamW(model.parameters(), lr=0.1)
        optimizer = minga.Optimizer(inner, machine.peer, model=model, scheduler=SHORT[name](inner))
        machine.meet(optimizer)
        for batch in machine.batches(4):
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                return optimizer.digest(), optimizer.param_groups[0]["lr"]
        raise AssertionError

    with caplog.at_level(logging.WARNING, "minga"):
        found = run_scripts(spec_of(12, STEPS), [train] * 2, tmp_path)
    assert len(set(found)) == 1
    words = [each.getMessage() for each in caplog.records if "schedule ends at" in each.getMessage()]
    assert len(words) == 2  # at the start, and not again
    assert all(f"and the run at {STEPS}" in each for each in words)


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step()`")
def test_who_takes_the_state_over_beyond_the_end_holds_the_same_rate(name: str) -> None:
    def replica() -> Replica:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return Replica(spec_of(4, None), optimizer, model=model, scheduler=SHORT[name](optimizer))

    old, new = replica(), replica()
    for step in range(1, 10):
        old.apply(torch.full((old.vector.numel,), 0.01), step)
        if step == 7:
            new.restore(old.capture())
        if step > 7:
            new.apply(torch.full((old.vector.numel,), 0.01), step)
    assert new.digest() == old.digest()
    assert new.optimizer.param_groups[0]["lr"] > 0.0


def test_a_peer_that_takes_no_steps_of_its_own_is_not_warned_by_torch() -> None:
    inner = torch.optim.SGD(network().parameters(), lr=1.0)
    schedule = Schedule(SHORT["list"](inner), inner, None)
    schedule.advance()  # as an auxiliary does with a mean of local steps; a warning is an error here
    assert inner.param_groups[0]["lr"] == RATES[1]


def trained(optimizer: torch.optim.Optimizer, scheduler: lr_scheduler.LRScheduler | None = None) -> torch.Tensor:
    """The parameters after 16 steps by gradients of 0.01."""
    replica = Replica(spec_of(4, None), optimizer, scheduler=scheduler)
    for step in range(1, 17):
        replica.apply(torch.full((replica.vector.numel,), 0.01), step)
    return replica.read_values()


@pytest.mark.parametrize(("end", "is_told"), [(4, True), (7, False)])
def test_a_run_that_outlives_its_schedule_says_that_nothing_is_learned_any_more(
    end: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a recipe does that has more steps than `optimizer.total_steps`, or no end."""
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    trained(optimizer, lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / end)))
    assert caplog.text.count("the learning rate was 0 in the last 10 global steps") == int(is_told)


@pytest.mark.parametrize(("length", "words"), [(10, "rises again"), (60, ""), (100, ""), (300, "hardly falls")])
def test_a_schedule_that_was_made_for_another_number_of_steps_is_told(
    length: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As for epochs: a cosine of 10 of them goes up and down five times in 100 global steps."""
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    Schedule(lr_scheduler.CosineAnnealingLR(optimizer, length), optimizer, 100)
    assert [words in each.getMessage() for each in caplog.records] == [True] * bool(words)


def test_schedules_one_after_the_other_are_as_long_as_all_together(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    parts = [lr_scheduler.CosineAnnealingLR(optimizer, 40) for _ in range(3)]
    Schedule(lr_scheduler.SequentialLR(optimizer, parts, [40, 80]), optimizer, 110)
    assert not caplog.records


class OfItsOwn(torch.optim.Optimizer):
    """Finds the rate itself, as Adafactor does with `relative_step`."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad)


def test_an_optimizer_that_finds_its_rate_itself_has_none(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    after = trained(OfItsOwn(model.parameters()))
    assert after[: len(before)].mean().item() == pytest.approx(before.mean().item() - 0.16, abs=1e-5)
    assert "learning rate" not in caplog.text
