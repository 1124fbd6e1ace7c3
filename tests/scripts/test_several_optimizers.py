"""Scripts with several optimizers: of one model, as Muon beside AdamW, and of several models."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler

import minga
from minga.optim import Together
from minga.training.replica.replica import Replica
from minga.training.replica.schedule import SchedulesTogether
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS = 5


def two(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.05)]


def schedules(optimizers: list[torch.optim.Optimizer]) -> list[LRScheduler]:
    return [ExponentialLR(optimizers[0], 0.8), LambdaLR(optimizers[1], lambda step: 1.0 / (1 + step))]


@pytest.mark.parametrize("count", [1, 2])
def test_a_list_of_optimizers_with_a_schedule_for_each(tmp_path: Path, count: int) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        optimizers = two(model)
        optimizer = minga.Optimizer(optimizers, machine.peer, model=model, scheduler=schedules(optimizers))
        machine.meet(optimizer)
        for batch in machine.batches(4):
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                assert [len(each.state_dict()["state"]) for each in optimizers] == [2, 2]
                return values(model), optimizer.digest(), len(optimizer.state)
        raise AssertionError

    found = run_scripts(spec_of(4 * count, STEPS), [train] * count, tmp_path)
    assert len({digest for _, digest, _ in found}) == 1
    assert {kept for _, _, kept in found} == {4}
    if count == 1:
        model = network()
        plain = two(model)
        rates = schedules(plain)
        for _, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
            model(batch).square().mean().backward()
            for each in (*plain, *rates):
                each.step()
            model.zero_grad()
        assert found[0][0] == values(model)


def test_who_takes_the_state_of_several_optimizers_over_goes_on_to_the_bit() -> None:
    def replica() -> Replica:
        model = network()
        optimizers = two(model)
        together = Together(optimizers)
        schedule = SchedulesTogether(schedules(optimizers), together)
        return Replica(spec_of(4, 9), together, model=model, scheduler=schedule)

    old, new = replica(), replica()
    chance = torch.Generator().manual_seed(5)
    for step in range(1, 8):
        mean = torch.randn(old.vector.numel, generator=chance)
        old.apply(mean, step)
        if step > 3:
            new.apply(mean, step)
        if step == 3:
            new.restore(old.capture())
            assert new.digest() == old.digest()
    assert new.digest() == old.digest()
    assert new.optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.8**7)


def test_the_state_dict_of_several_is_that_of_one() -> None:
    def trained(model: torch.nn.Module, optimizer: Together, first: int, last: int) -> None:
        for number, batch in zip(range(last), batches_of(0, 4), strict=False):
            if number >= first:
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    one, other = network(), network()
    before, after = Together(two(one)), Together(two(other))
    trained(one, before, 0, 3)
    other.load_state_dict(one.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert len(after.optimizers[0].state_dict()["state"]) == 2
    for model, optimizer in ((one, before), (other, after)):
        trained(model, optimizer, 3, 6)
    assert values(one) == values(other)
    with pytest.raises(ValueError, match="more than one parameter group"):
        Together([torch.optim.SGD(one.parameters()), torch.optim.AdamW(one.parameters())])


def test_one_of_several_optimizers_may_have_no_schedule(tmp_path: Path) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        muon, adamw = two(model)
        optimizer = minga.Optimizer(
            [muon, adamw], machine.peer, model=model, scheduler=[None, ExponentialLR(adamw, 0.5)]
        )
        machine.meet(optimizer)
        for batch in machine.batches(4):
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                return [each.param_groups[0]["lr"] for each in (muon, adamw)]
        raise AssertionError

    assert run_scripts(spec_of(4, STEPS), [train], tmp_path) == [[0.02, 0.05 * 0.5**STEPS]]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (torch.optim.SGD, "SGD"),
        (partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw"), "Muon (adjust_lr_fn match_rms_adamw, nesterov)"),
    ],
    ids=["class", "rule of rates"],
)
def test_a_peer_with_another_pair_of_optimizers_is_refused(tmp_path: Path, other: Any, named: str) -> None:
    def host(machine: Machine) -> Any:
        model = network()
        optimizer = minga.Optimizer(two(model), machine.peer, model=model)
        machine.meet(optimizer)

    def guest(machine: Machine) -> Any:
        model = network()
        matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        _, rest = two(model)
        machine.meet(minga.Optimizer([other(matrices, lr=0.02), rest], machine.peer, model=model))

    found = run_scripts(spec_of(8, STEPS), [host, guest], tmp_path)
    assert isinstance(found[1], minga.ConfigurationError)
    assert f"trained by Muon (nesterov) and AdamW, this program's optimizer is {named} and AdamW" in str(found[1])


def test_a_second_optimizer_of_a_peer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        first, second = torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.1)
        optimizer = minga.Optimizer(first, machine.peer)
        while not list((machine.peer.directory / "checkpoints").glob("step-*")):  # which the second would not fit
            optimizer.follow(0.01)
        minga.Optimizer(second, machine.peer)

    (error,) = run_scripts(spec_of(4, STEPS), [train], tmp_path)
    assert isinstance(error, minga.ConfigurationError)
    assert "minga.Optimizer([muon, adamw], peer, model=model)" in str(error)
