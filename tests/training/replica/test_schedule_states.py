"""Schedules of all kinds: tried at the start without a trace, advanced to their ends, and taken over with a state."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from minga.core.errors import ConfigurationError
from minga.optim.together import Together
from minga.training.replica.interface import LOOP_RATES
from minga.training.replica.replica import Replica
from minga.training.replica.schedule import Schedule, SchedulesTogether, can_be_stretched, length_of, stretch
from tests.worlds.script_peers import network, spec_of

MakeSchedule = Callable[[torch.optim.Optimizer], LRScheduler]

ANY: dict[str, MakeSchedule] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 9, eta_min=1e-4),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, mode="exp_range", gamma=0.9),
    "several steps": lambda o: lr_scheduler.MultiStepLR(o, [2, 4], 0.5),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "one after the other": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
    "average": lambda o: torch.optim.swa_utils.SWALR(o, 0.005, anneal_epochs=4),
}


class Warmup(LRScheduler):
    """A linear warm-up, and then another schedule, which it holds; a switch says which of them is at work."""

    switch = "finished"

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int, after: LRScheduler) -> None:
        self.steps, self.after = steps, after
        setattr(self, self.switch, False)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        if self.last_epoch > self.steps:
            setattr(self, self.switch, True)
            return self.after.get_last_lr()
        return [rate * max(1, self.last_epoch) / self.steps for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        if getattr(self, self.switch):
            self.after.step()
            self.last_epoch += 1
        else:
            super().step(epoch)


class PrivateWarmup(Warmup):
    switch = "_finished"


class Trainer:
    """What a schedule asks for its rate; far too much to be copied."""

    def __init__(self) -> None:
        self.calls, self.copies = 0, [0]

    def __deepcopy__(self, memo: object) -> Trainer:
        self.copies[0] += 1
        return self

    def rate(self, step: int) -> float:
        self.calls += 1
        return 1.0 / (step + 1)

    __call__ = rate


def sgd(rate: Any = 0.1, **settings: Any) -> torch.optim.Optimizer:
    """Of two groups, which have one tensor as their rate if that is one."""
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    return torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=rate, momentum=0.9, **settings)


def replica(make: MakeSchedule | None, rate: Any = 0.1, stop: int | None = None) -> Replica:
    optimizer = sgd(rate.clone() if isinstance(rate, torch.Tensor) else rate)
    return Replica(spec_of(4, stop), optimizer, scheduler=None if make is None else make(optimizer))


def rates(replica: Replica) -> list[float]:
    return [float(group["lr"]) for group in replica.optimizer.param_groups]


def goes_on_alike(make: MakeSchedule | None, rate: Any = 0.1, taken_over_at: int = 5, stop: int | None = None) -> bool:
    """Whether a newcomer has the digests and rates of a run at each step."""
    old, new = replica(make, rate, stop), replica(make, rate, stop)
    found = []
    for step in range(1, taken_over_at + 8):
        mean = torch.full((old.vector.numel,), 0.01)
        old.apply(mean, step)
        if step > taken_over_at:
            new.apply(mean, step)
        elif step == taken_over_at:
            new.restore(old.capture())
        if step >= taken_over_at:
            found += [rates(old) == rates(new), old.digest() == new.digest()]
    return all(found)


@pytest.mark.parametrize(("name", "rate"), [*((name, 0.1) for name in ANY), ("chain", torch.tensor(0.1))])
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step()`")
def test_no_trial_at_the_start_leaves_a_trace_and_a_newcomer_goes_on_alike(name: str, rate: Any) -> None:
    optimizer = sgd(rate.clone() if isinstance(rate, torch.Tensor) else rate)
    scheduler = ANY[name](optimizer)

    def all_numbers() -> str:
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        return f"{groups} {scheduler.state_dict()}"

    before = all_numbers()
    Schedule(scheduler, optimizer, 60)
    assert all_numbers() == before
    assert goes_on_alike(ANY[name], rate)


@pytest.mark.parametrize("is_called", [True, False])
def test_a_trial_copies_nothing_of_what_a_schedule_asks_and_leaves_its_numbers(is_called: bool) -> None:
    trainer, optimizer = Trainer(), sgd()
    scheduler = lr_scheduler.LambdaLR(optimizer, trainer if is_called else trainer.rate)
    calls = trainer.calls
    Schedule(scheduler, optimizer, 60)
    assert (trainer.copies, trainer.calls) == ([0], calls)


@pytest.mark.parametrize(
    ("ends", "other"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=4), lambda o: lr_scheduler.StepLR(o, 5, 0.5)),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: [3, 2, 1][step]), ANY["one after the other"]),
    ],
)
@pytest.mark.parametrize("ends_first", [True, False])
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step()`")
def test_one_of_several_schedules_ends_alone(
    ends: MakeSchedule, other: MakeSchedule, ends_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    alone, (one, two) = sgd(), (sgd(), sgd())
    wanted, together = other(alone), Together([one, two] if ends_first else [two, one])
    parts = [ends(one), other(two)]
    schedule = Schedule(SchedulesTogether(parts if ends_first else parts[::-1], together), together, 12)
    vars(alone)["_opt_called"] = True
    held = set()
    for step in range(12):
        schedule.advance()
        schedule.check()
        wanted.step()
        assert [group["lr"] for group in two.param_groups] == [group["lr"] for group in alone.param_groups]
        if step >= 4:
            held.add(one.param_groups[0]["lr"])
    assert len(held) == 1
    assert caplog.text.count("schedule ends at global step") == 1


def test_where_schedules_multiply_one_rate_the_end_of_one_holds_it_as_it_was() -> None:
    def chain(optimizer: torch.optim.Optimizer) -> LRScheduler:
        ends = lr_scheduler.MultiplicativeLR(optimizer, lambda step: [1.0, 1.0, 0.5][step])
        return lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.5), ends])

    old = replica(chain)
    for step in range(1, 7):
        old.apply(torch.zeros(old.vector.numel), step)
        if step >= 2:
            assert rates(old) == [0.0125, 0.0125]


NUMPY: dict[str, tuple[Any, MakeSchedule | None]] = {
    "factor": (0.1, lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: np.float32(0.7))),
    "share": (0.1, lambda o: lr_scheduler.LambdaLR(o, lambda step: np.float32(0.7**step))),
    "for a while": (0.1, lambda o: lr_scheduler.MultiplicativeLR(o, lambda at: np.float32(0.7) if at < 4 else 0.7)),
    "double": (0.1, lambda o: lr_scheduler.LambdaLR(o, lambda step: np.float64(0.7**step))),
    "setting": (0.1, lambda o: lr_scheduler.StepLR(o, 1, np.float32(0.7))),
    "rate": (np.float32(0.1), lambda o: lr_scheduler.ExponentialLR(o, 0.7)),
    "array": (np.array(0.1), lambda o: lr_scheduler.ExponentialLR(o, 0.7)),
    "no schedule": (np.float32(0.1), None),
    "integer": (np.int64(1), lambda o: lr_scheduler.StepLR(o, 2, 0.7)),
    "tensor": (0.1, lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: torch.tensor(0.7))),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy_are_numbers_of_a_state(name: str) -> None:
    rate, make = NUMPY[name]
    run = replica(make, rate)
    assert isinstance(run.capture().scalars["groups"][0]["lr"], float)
    assert goes_on_alike(make, rate)


def test_a_schedule_that_holds_another_one_and_a_switch_goes_on_at_who_takes_the_state_over() -> None:
    for at in (2, 3, 4, 5, 8):
        assert goes_on_alike(lambda o: Warmup(o, 3, lr_scheduler.StepLR(o, 2, 0.5)), taken_over_at=at, stop=16)


def once_more(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """A function that counts its calls where nobody sees it."""
    calls = iter(range(1_000_000))
    return lr_scheduler.LambdaLR(optimizer, lambda _: 1.0 / (1 + next(calls)))


class Listing(LRScheduler):
    """Goes by what it holds in an object of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen = {"before"}
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        self.seen = {*self.seen, str(len(self.seen))}
        return [rate / len(self.seen) for rate in self.base_lrs]


class Counting(LRScheduler):
    """It keeps what it goes by in the groups of its optimizer, where states have only the optimizer's own numbers."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups if self.last_epoch >= 1 else ():
            group["seen"] = group.get("seen", 0) + 1
        return [0.1 / (1 + group.get("seen", 0)) for group in self.optimizer.param_groups]


@pytest.mark.parametrize("stop", [None, 200])
@pytest.mark.parametrize(
    "make", [lambda o: PrivateWarmup(o, 70, lr_scheduler.StepLR(o, 20, 0.5)), once_more, Listing, Counting]
)
def test_a_schedule_that_goes_by_what_no_state_holds_is_refused(make: MakeSchedule, stop: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r"takes the state of global step \d+ over would have the learning"):
        replica(make, stop=stop)


def test_a_schedule_that_follows_a_metric_is_refused_inside_another_one_too() -> None:
    with pytest.raises(ConfigurationError, match="ReduceLROnPlateau needs a metric"):
        replica(lambda o: Warmup(o, 3, lr_scheduler.ReduceLROnPlateau(o)))


class Adding(torch.optim.Optimizer):
    """Counts in its parameter groups from its first step on."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["seen"] = 1.0 / group["step"]
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] * group["seen"])


def test_numbers_that_an_optimizer_adds_to_its_groups_belong_to_the_state(caplog: pytest.LogCaptureFixture) -> None:
    run, again = (
        Replica(spec_of(4, None), Adding(model.parameters()), model=model) for model in (network(), network())
    )
    mean, first = torch.full((run.vector.numel,), 0.01), run.capture()
    for step in range(1, 4):
        run.apply(mean, step)
    third = run.capture()
    again.restore(third)
    assert again.digest() == run.digest()
    assert isinstance(again.optimizer.param_groups[0]["step"], int)
    run.apply(mean, 4)
    again.apply(mean, 4)
    assert again.digest() == run.digest()
    for state, has in ((third, True), (first, False), (third, True)):
        run.restore(state)  # as a peer that goes back to what the others have
        assert (run.step, "step" in run.optimizer.param_groups[0]) == (state.step, has)
        assert run.capture().scalars == state.scalars
    assert "gives way" not in caplog.text


def test_what_a_program_adds_to_the_groups_is_its_own() -> None:
    """As a scheduler does that it makes later, and steps in its loop."""
    run, plain = (
        Replica(spec_of(4, None), torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        for model in (network(), network())
    )
    lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=10)
    run.look_at_loop()
    assert run.digest() == plain.digest()
    run.restore(plain.capture())
    plain.restore(run.capture())
    assert run.optimizer.param_groups[0]["max_lr"] == 0.1
    assert "max_lr" not in plain.optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("rates", "is_told"),
    [
        ((0.01, 0.05), True),
        ((None, 0.01, None, 0.05), True),
        ((0.7,), True),
        ((0.19, 0.05), False),
        ((None, 0.3, 0.05), False),
        ((0.1, None, 0.02, 0.001), False),
    ],
    ids=[
        "from the start",
        "from the start, after its steps",
        "from the start, without a warm-up",
        "by global steps",
        "by global steps, in a warm-up",
        "by global steps, at its end",
    ],
)
def test_a_loop_of_the_organiser_that_begins_its_schedule_again_is_told(
    caplog: pytest.LogCaptureFixture, rates: tuple[float | None, ...], is_told: bool
) -> None:
    """As one that counts its own iterations does when its program is started again."""
    model = network()
    run = Replica(spec_of(4, None), torch.optim.SGD(model.parameters(), lr=0.2), model=model)
    (group,), mean = run.optimizer.param_groups, torch.zeros(run.vector.numel)
    run.loop_rates.is_heard = True
    run.apply(mean, 1)
    run.restore(run.capture())
    for step, rate in enumerate(rates, 2):
        group["lr"] = rate or group["lr"]
        run.look_at_loop()
        assert run.loop.rates == (() if rate is None else (rate,))
        if rate is not None:
            run.amend({LOOP_RATES: [rate]})
        run.apply(mean, step)
    assert caplog.text.count("takes the run back to the beginning of the schedule") == is_told


def test_numbers_that_an_optimizer_adds_cannot_go_with_steps_of_each_peer_alone() -> None:
    model = network()
    alone = Replica(spec_of(4, None), Adding(model.parameters()), model=model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ConfigurationError, match="changes seen of its parameter groups at each step"):
        alone.inner_step()


class Outer(LRScheduler):
    """One that holds another one, which knows it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        inner.parent = self
        super().__init__(inner.optimizer)

    def get_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]


class Experiment:
    def __init__(self) -> None:
        self.ended = 0

    def factor(self, step: int) -> float:
        return 1.0 / (1 + step)

    def __del__(self) -> None:
        ENDED.append(self)


ENDED: list[Experiment] = []


class AddingOnce(torch.optim.SGD):
    """It adds something to its groups at its first step."""

    added: Any = 1.0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group.setdefault("added", self.added)
        return super().step(closure)


def test_the_trial_ends_nothing_of_the_program_and_goes_over_each_schedule_once() -> None:
    optimizer, experiment = torch.optim.SGD(network().parameters(), lr=0.1), Experiment()
    Schedule(lr_scheduler.LambdaLR(optimizer, experiment.factor), optimizer, 20)
    gc.collect()
    assert ENDED == []
    other = torch.optim.SGD(network().parameters(), lr=0.1)
    Schedule(Outer(lr_scheduler.ExponentialLR(other, 0.9)), other, 20)


@pytest.mark.parametrize("added", [[1.0, 2.0], {"n": 1.0}, torch.ones(()), True, "ready"])
def test_what_an_optimizer_adds_and_no_state_can_hold_is_refused(added: Any) -> None:
    model = network()
    optimizer = AddingOnce(model.parameters(), lr=0.1)
    optimizer.added = added
    replica = Replica(spec_of(4, 20), optimizer, model=model)
    total = replica.new_sum()
    model(torch.ones(2, 6)).square().mean().backward()
    total.add(1.0)
    replica.zero_grad()
    with pytest.raises(ConfigurationError, match="adds added to its parameter groups"):
        replica.apply(total.vector().clone(), 1)


@pytest.mark.parametrize(
    ("name", "more"),
    [("linear", {}), ("warmup_stable_decay", {"num_decay_steps": 10, "min_lr_ratio": 0.1})],
)
@pytest.mark.parametrize("steps", [8, 20, 60])  # the first is shorter than warm-up and decay
def test_a_schedule_of_transformers_goes_over_as_many_steps_as_it_is_told(
    name: str, more: dict[str, Any], steps: int
) -> None:
    def made_for(length: int) -> Any:
        optimizer = torch.optim.SGD(network().parameters(), lr=1.0)
        return get_scheduler(name, optimizer, 2, length, scheduler_specific_kwargs=more)

    stretched, wanted = made_for(32), made_for(steps)
    assert can_be_stretched(stretched)
    stretch(stretched, steps)
    assert length_of(stretched) == steps
    assert all(stretched.lr_lambdas[0](step) == wanted.lr_lambdas[0](step) for step in range(steps + 2))
