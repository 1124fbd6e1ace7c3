"""The learning rates of a run: the schedule that all peers advance together, and rates that a program's loop sets.

The schedule is torch's scheduler, advanced once for each global step and by nobody else. It may be shorter than its
run: `OneCycleLR` raises an error beyond its last step, as does a list of rates. All peers would end there, at one step,
and again after each resume. So the last rate is held from there on. Whether it is follows from the scheduler's state
alone, so that all peers do so alike, newcomers included.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from minga.averaging.messages import MAX_GROUPS, MAX_LEARNING_RATE
from minga.core.errors import ConfigurationError
from minga.core.units import counted
from minga.optim.together import Together, members_of
from minga.training.state.scalars import group_numbers, merge_numbers, number_of, numbers_of, plain, set_group_numbers

logger = logging.getLogger("minga.training")

UNKNOWN: Final = -1
MOST_TRIED: Final = 20_000
"""Steps of a schedule that are tried at the start: some tenths of a second."""
FEW_TRIED: Final = 100
"""The same for the schedules of torch in a run whose end nobody knows."""
LONG: Final = 2
"""A schedule that is so many times as long as its run, or as short, was made for another number of steps."""
_LENGTH: Final = "num_training_steps"
_PHASES: Final = ("num_stable_steps", "num_warmup_steps", "num_decay_steps")
"""What `transformers` keeps instead of a schedule with a stable phase."""
_ENDS: Final = (ValueError, LookupError)
"""What a schedule raises beyond its end."""


class SchedulesTogether(ChainedScheduler):
    """Schedulers of optimizers that are together in `optimizer`, each of which changes the rates of its own."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Together) -> None:
        self._schedulers = list(schedulers)  # torch's own constructor wants one optimizer for all
        self.optimizer = optimizer

    def step(self) -> None:  # type: ignore[override]  # that of one scheduler takes an epoch
        """Advance each of them."""
        for each in self._schedulers:
            each.step()

    @property
    def schedulers(self) -> Sequence[LRScheduler]:
        """Each of them."""
        return self._schedulers

    def get_last_lr(self) -> list[Any]:
        """The rates of all groups."""
        return [_copied(group["lr"]) for group in self.optimizer.param_groups]


class Schedule:
    """What `scheduler`, if there is one, makes of learning rates of `optimizer`, up to step `stop` if that is known.

    Raises `ConfigurationError` unless `scheduler` depends on nothing but the number of steps of `optimizer`, and goes
    on alike at a peer that takes over what states hold of it.
    """

    def __init__(self, scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer, stop: int | None) -> None:
        _check(scheduler, optimizer)
        self.scheduler, self._optimizer = scheduler, optimizer
        self._parts = list(parts_of(scheduler))
        self._told = set[int]()  # the schedules whose end was told, by their places
        for each in self._parts:
            vars(each).update(plain(vars(each)))
        for group in optimizer.param_groups:
            _settle(group, {})
        self.note()
        if scheduler is not None:
            self._try(scheduler, stop)
            self._compare_lengths(length_of(scheduler), stop or 0)

    def _compare_lengths(self, length: int, stop: int) -> None:
        is_short = 0 < LONG * length < stop and not self._told
        if length > LONG * stop > 0 or is_short:
            logger.warning(
                "the learning-rate schedule goes over %d global steps, and the run ends after %d: %s. Make the "
                "schedule for %d steps, which is peer.spec.training.stop_after_steps",
                length,
                stop,
                "the rate is 0 long before, or rises again" if is_short else "the rate hardly falls",
                stop,
            )

    def note(self) -> None:
        """The scheduler stands where the run's state says."""
        self._stands_at = list(map(_place, self._parts))

    def check(self) -> None:
        """Raise `ConfigurationError` if somebody else advanced the scheduler, which would differ between peers."""
        if list(map(_place, self._parts)) != self._stands_at:
            raise ConfigurationError(
                "the learning-rate scheduler was stepped by the program; leave that to minga.Optimizer, which does it "
                "once per global step"
            )

    def advance(self) -> None:
        """A global step was taken."""
        # A peer that only applies the averages of others takes no step of its own, of which torch would warn.
        for each in self._parts:
            vars(each.optimizer)["_opt_called"] = True
        groups = self._optimizer.param_groups
        before = {id(group): _numbers_in(group) for group in groups} if self._parts else {}
        try:
            for index, each in enumerate(_apart(self.scheduler)):
                self._advance(each, index, before)
        finally:
            for group in groups:
                _settle(group, before.get(id(group), {}))
            self.note()

    def _advance(self, scheduler: LRScheduler, index: int, before: dict[int, dict[str, Any]]) -> None:
        at, numbers = _steps_of(scheduler), numbers_of(scheduler)
        try:
            scheduler.step()
        except _ENDS as error:
            if at < 1:
                raise
            merge_numbers(scheduler, numbers)
            for group in scheduler.optimizer.param_groups:
                _put(group, before[id(group)])
            self._tell(index, at, error)

    def _try(self, scheduler: LRScheduler, stop: int | None) -> None:
        """Say at the start where the schedule ends before the run does, and refuse one whose state does not say how it
        goes on: a peer that took the state over would go on by other rates, and nothing would show it.
        """
        try:
            differing = self._go_over(scheduler, stop)
        except Exception:  # a mistake, which the run shows where it comes to it
            return
        if differing:
            raise ConfigurationError(differing)

    def _go_over(self, scheduler: LRScheduler, stop: int | None) -> str:
        """Go over the schedule as the run will, beside a copy that now and then begins anew by what a state holds; what
        is wrong if the two do not go on alike.
        """
        known = all(type(each).__module__.startswith(("torch.", __name__)) for each in self._parts)
        tried, begin = _Trial(scheduler), max(0, _steps_of(scheduler))
        later, since = tried, begin
        for at in range(begin, min(MOST_TRIED, stop or (FEW_TRIED if known else MOST_TRIED))):
            if at == begin or at & (at - 1) == 0:  # a power of two
                later, since = _Trial(scheduler), at
                later.take_over(tried)
            for index, error in tried.step().items():
                if at >= 1:
                    self._tell(index, at, error, stop)
            later.step()
            for wanted, found in zip(tried.rates(), later.rates(), strict=True):
                if found != wanted:
                    return (
                        f"a peer that takes the state of global step {since} over would have the learning rate "
                        f"{found:g} at step {at + 1}, and the others {wanted:g}: a state holds the numbers and the "
                        "switches (but such as begin with _) that a scheduler, and each in it, has as attributes. Let "
                        "it go by nothing else, and functions by the step alone"
                    )
            if tried.is_over:
                break
        return ""

    def _tell(self, index: int, end: int, error: Exception, stop: int | None = None) -> None:
        if index not in self._told:
            self._told.add(index)
            logger.warning(
                "the learning-rate schedule ends at global step %d%s (%s): from there on its last rate is held",
                end,
                "" if stop is None else f", and the run at {stop}",
                error,
            )


class _Trial:
    """A copy of a scheduler, which is advanced without anything else being changed."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler: LRScheduler = _copy_of(scheduler, {})
        self._left = dict(enumerate(_apart(self._scheduler)))

    @property
    def is_over(self) -> bool:
        """Whether all schedules ended."""
        return not self._left

    def step(self) -> dict[int, Exception]:
        """Advance it; which schedules end here, by their places."""
        ended: dict[int, Exception] = {}
        for index, each in self._left.items():
            groups = each.optimizer.param_groups
            before = [group["lr"] for group in groups]
            try:
                each.step()
            except _ENDS as error:
                ended[index] = error
            for group, rate in zip(groups, before, strict=True):
                group["lr"] = _settled(group["lr"], rate)
        if ended:
            self._left = {index: each for index, each in self._left.items() if index not in ended}
        return ended

    def take_over(self, other: _Trial) -> None:
        """Become what a state holds of the other one."""
        merge_numbers(self._scheduler, numbers_of(other._scheduler))
        pairs = zip(self._scheduler.optimizer.param_groups, other._scheduler.optimizer.param_groups, strict=True)
        for group, theirs in pairs:
            held = {key: value for key, value in group_numbers(theirs).items() if key in group}
            set_group_numbers(group, held, group.keys())
        self._left = {index: self._left[index] for index in other._left}

    def rates(self) -> list[float]:
        """Those of the schedules that did not end."""
        return [float(group["lr"]) for each in self._left.values() for group in each.optimizer.param_groups]


def _copy_of(value: Any, copies: dict[int, Any]) -> Any:
    """A copy for a trial, with stand-ins for optimizers. What schedulers hold beside numbers and lists of them, such as
    a trainer that is asked for the rate, is copied without what that holds.
    """
    if id(value) in copies:
        return copies[id(value)]
    copied = partial(_copy_of, copies=copies)
    found = value
    if isinstance(value, torch.Tensor):
        found = value.detach().clone() if value.numel() == 1 else value
    elif isinstance(value, torch.optim.Optimizer):
        groups = list(map(copied, value.param_groups))
        found = SimpleNamespace(param_groups=groups, step=value.step, defaults=value.defaults, _opt_called=True)
    elif isinstance(value, MethodType):
        found = MethodType(value.__func__, copied(value.__self__))
    elif isinstance(value, dict):
        found = copy.copy(value)
        for key, each in value.items():
            found[key] = copied(each)
    elif type(value) in (list, tuple):
        found = type(value)(map(copied, value))
    elif hasattr(value, "__dict__") and not isinstance(value, Enum) and not hasattr(value, "__del__"):
        with contextlib.suppress(TypeError):  # of functions, classes and so on there is no such copy
            copies[id(value)] = found = object.__new__(type(value))
            held = vars(value).items()
            vars(found).update({key: copied(each) if isinstance(value, LRScheduler) else each for key, each in held})
    copies[id(value)] = found
    return found


def _settle(group: dict[str, Any], before: Mapping[str, Any]) -> None:
    for key, value in group.items():
        if key != "params":
            group[key] = _settled(value, before.get(key))


def _settled(value: Any, before: Any) -> Any:
    """What a schedule made of a number, as a number of Python, unless it was a tensor `before`: who takes the state
    over has that.
    """
    if isinstance(value, torch.Tensor) and isinstance(before, int | float):
        return number_of(value)
    return plain(value)


def parts_of(scheduler: LRScheduler | None) -> Iterator[LRScheduler]:
    """A scheduler and those that it holds, and so on, each once."""
    waiting, seen = [] if scheduler is None else [scheduler], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        held = [value if isinstance(value, list | tuple) else [value] for value in vars(part).values()]
        waiting += reversed([each for values in held for each in values if isinstance(each, LRScheduler)])


def _apart(scheduler: LRScheduler | None) -> Sequence[LRScheduler]:
    """The schedulers of which each goes on when another one ends."""
    if isinstance(scheduler, SchedulesTogether):
        return scheduler.schedulers
    return () if scheduler is None else (scheduler,)


def _place(part: LRScheduler) -> int:
    return int(getattr(part, "last_epoch", UNKNOWN))


def _steps_of(scheduler: LRScheduler) -> int:
    """The steps that a scheduler has seen; one that chains others counts by them."""
    return next((each.last_epoch for each in parts_of(scheduler) if hasattr(each, "last_epoch")), UNKNOWN)


def length_of(scheduler: LRScheduler) -> int:
    """The steps that a scheduler of torch, or of `transformers.get_scheduler`, was made for; 0 if it does not say."""
    inner = [length_of(each) for each in getattr(scheduler, "_schedulers", ())]
    if milestones := getattr(scheduler, "_milestones", None):  # one after the other
        return milestones[-1] + inner[-1] if inner[-1] else 0
    named = [getattr(scheduler, name, None) for name in ("total_steps", "T_max")]
    named += [_steps_in(function.keywords) for function in _partials(scheduler)]
    return max([int(each) for each in named if isinstance(each, int)] + inner, default=0)


def can_be_stretched(scheduler: LRScheduler) -> bool:
    """Whether it is a schedule of `transformers.get_scheduler` that was made for some number of steps."""
    return any(_steps_in(each.keywords) is not None for each in _partials(scheduler))


def stretch(scheduler: LRScheduler, steps: int) -> None:
    """Have a schedule that can be go over so many steps: scripts make it for those of their own loop. A stable phase
    takes what warm-up and decay leave: less than nothing where these are longer, as transformers makes it itself.
    """
    functions = getattr(scheduler, "lr_lambdas", None)
    if not isinstance(functions, list):
        return
    for place, function in enumerate(functions):
        if isinstance(function, partial) and _steps_in(function.keywords) not in (None, steps):
            logger.info("the learning-rate schedule goes over the %d global steps of the run", steps)
            kept, around = function.keywords, sum(function.keywords.get(name, 0) for name in _PHASES[1:])
            longer = {_PHASES[0]: steps - around} if kept.keys() >= set(_PHASES) else {_LENGTH: steps}
            functions[place] = partial(function.func, *function.args, **{**kept, **longer})


def _steps_in(keywords: Mapping[str, Any]) -> int | None:
    """The steps for which `transformers` made a function with these keywords; None if it does not say."""
    has_phases = keywords.keys() >= set(_PHASES)
    steps: int | None = sum(keywords[name] for name in _PHASES) if has_phases else keywords.get(_LENGTH)
    return steps


def _partials(scheduler: LRScheduler) -> list[partial[float]]:
    return [each for each in getattr(scheduler, "lr_lambdas", ()) if isinstance(each, partial)]


def _check(scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, LRScheduler) and any(isinstance(each, ReduceLROnPlateau) for each in parts_of(scheduler)):
        raise ConfigurationError("ReduceLROnPlateau needs a metric, on which peers would not agree; use a schedule")
    if not isinstance(scheduler, LRScheduler):
        raise ConfigurationError(
            f"scheduler= must be a torch LRScheduler, not a {type(scheduler).__name__}; for a function of the step use "
            "torch.optim.lr_scheduler.LambdaLR(optimizer, f)"
        )
    if isinstance(scheduler, SchedulesTogether):
        members = members_of(optimizer)
        for each in scheduler.schedulers:
            _check(each, next((member for member in members if member is getattr(each, "optimizer", None)), optimizer))
    if scheduler.optimizer is not optimizer:
        raise ConfigurationError("the scheduler belongs to another optimizer: make it with the one that is wrapped")


# ---- Learning rates that the program's loop sets, as many scripts do in each iteration.
#
# Theory of operation. The numbers of the optimizer's parameter groups (learning rates, weight decay, momentum) belong
# to the state that all peers share. A loop that sets them by its own iterations sets others on each machine, and peers
# would apply equal means to different ends. So at each micro-batch what the loop changed is put back, and then:
#
# * What the loop of the organiser sets is taken by all peers: its peer says it with its reports, the leader writes it
#   into the plan, and the update of the round that counts is made by it (`Plan.rates`).
# * Once the organisers amended the rate, their order counts, and no loop sets it.
# * The loops of others may set what the run has anyway. With rounds in flight a loop is one step before or behind.
# * A loop that sets something else, or several values within one global step, is warned the first time, and refused
#   the second time: its program believes in a schedule that nobody follows.


REFUSED_AT: Final = 2
"""The time at which a loop that sets other numbers than the run has is refused."""
SILENT: Final = 10
"""Updates without rates of the organiser's loop after which the others are told that theirs stay as they are."""
IDLE: Final = 10
"""Updates in a row by a rate of 0 after which the program is told that nothing is learned."""
NEAR: Final = 1e-6
"""Relative difference of rates that machines with other mathematical libraries may compute by one formula."""
JUMP: Final = 0.1
"""Relative difference by which a rate jumps; from step to step that of a schedule changes by less, but for a warm-up's
and where it ends.
"""
FIXED_PARAMETERS: Final = "parameters cannot be added to a run: all peers average the same vector"
_REMEDY: Final = (
    "Give minga.Optimizer the schedule, which it then follows by global steps on all peers: "
    "scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor), where factor(step) is the share of the "
    "optimizer's own rate"
)
Rates = tuple[float, ...]
"""One for each parameter group."""


class LoopRates:
    """What the loop sets in the groups of `optimizer`; with `has_schedule` a scheduler sets their learning rates.

    For the training thread, but for `wanted`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, has_schedule: bool) -> None:
        self.is_heard = False
        """Whether this is the organiser's peer, whose loop counts."""
        self.wanted: Rates = ()
        """What the run is to have from its next round on; empty for what it has. Any thread may ask."""
        self._optimizer, self._has_schedule = optimizer, has_schedule
        self._said: tuple[int, Rates] | None = None  # the last global step in which the loop set rates, and these
        self._before: tuple[int, Rates] | None = None  # the same of the step before, which is still to be judged
        self._used = deque[Rates](maxlen=3)  # those of the last updates
        self._since_given = math.inf  # updates since the last one that was made by rates of the organiser's loop
        self._times, self._refusal = 0, ""
        self._is_ordered = self._is_told_of_order = False
        self._idle = 0  # updates in a row by a rate of 0
        self._since_taken_over = math.inf  # updates since the state came from elsewhere, until the loop sets rates
        self._sizes = _sizes(optimizer)
        self.keep()

    def go_by_order(self, *, is_ordered: bool) -> None:
        """The organisers amended the rate, or their order counts no more."""
        self._is_ordered = is_ordered
        if is_ordered:
            self.wanted, self._said, self._before = (), None, None

    def keep(self) -> None:
        """The groups have the numbers of the run now."""
        self._kept = list(map(_numbers_in, self._optimizer.param_groups))

    def begin_anew(self) -> None:
        """The state was replaced: the groups have its numbers."""
        self.wanted, self._said, self._before = (), None, None
        self._used.clear()
        self._since_taken_over = 0
        self.keep()

    def changed(self) -> set[str]:
        """Which numbers of the groups are others now than those of the run. Raises `ConfigurationError` if they have
        other parameters.
        """
        if self._sizes != _sizes(self._optimizer):
            raise ConfigurationError(FIXED_PARAMETERS)
        pairs = zip(self._optimizer.param_groups, self._kept, strict=True)
        return {key for group, kept in pairs for key, value in kept.items() if group.get(key) != value}

    def changed_by(self, step: Callable[[], object]) -> set[str]:
        """Which of them a `step` of the optimizer changes, or adds."""
        groups, before = self._optimizer.param_groups, self.changed()
        names = [frozenset(group) for group in groups]
        step()
        pairs = zip(groups, names, strict=True)
        added = {key for group, had in pairs for key in group.keys() - had if _has_numbers(group[key])}
        return self.changed() - before | added

    def look(self, step: int) -> None:
        """A micro-batch of `step` ended: put back what the loop changed.

        Raises `ConfigurationError` when that was something else than the run has for the second time.
        """
        if changed := self.changed():
            rates = self._rates()
            for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
                _put(group, kept)
            if others := sorted(changed - {"lr"}):
                self._object(f"the loop sets {others[0]} of the optimizer at global step {step}, which all peers share")
            else:
                self._note(step, rates)
        if self._refusal:
            raise ConfigurationError(self._refusal)

    def give(self, rates: Sequence[float]) -> None:
        """The update that comes next is to be made by these rates, which the organiser's loop set."""
        groups = self._optimizer.param_groups
        if self._is_ordered:
            return
        if self._has_schedule or len(rates) != len(groups):
            here = "a scheduler does that" if self._has_schedule else f"are {counted(len(groups), 'group')}"
            self._refusal = (
                f"the loop of the run's organiser sets the learning rates of {counted(len(rates), 'parameter group')}, "
                f"and here {here}: all peers need the same parameter groups and the same schedule"
            )
            return
        for group, rate in zip(groups, rates, strict=True):
            _put(group, {"lr": rate})
        self._since_given = -1
        self.keep()

    def judge(self, step: int) -> None:
        """The update of `step` was made by the rates that the groups have: does the loop believe in others?"""
        self._since_given += 1
        self._since_taken_over += 1
        used = self._rates()
        self._tell_if_idle(used)
        self._used.append(used)
        if _are_near(self.wanted, used):
            self.wanted = ()
        before, self._before = self._before, self._said if self._said and self._said[0] == step else None
        if before is None or self.wanted or any(_are_near(before[1], each) for each in self._used):
            return
        if self._since_given in (0, math.inf):
            said = ", ".join(f"{rate:.6g}" for rate in before[1][:3])
            has = ", ".join(f"{rate:.6g}" for rate in used[:3])
            self._object(f"the loop set the learning rate to {said} at global step {before[0]}, and the run has {has}")
        elif self._since_given == SILENT:
            logger.warning(
                "the learning rate was that of the organiser's loop, which says nothing now: it stays at %g. %s",
                used[0],
                _REMEDY,
            )

    def _tell_if_idle(self, used: Rates) -> None:
        self._idle = 0 if any(used) else self._idle + 1
        if self._idle == IDLE and all(group.get("lr") is not None for group in self._optimizer.param_groups):
            logger.warning(
                "the learning rate was 0 in the last %d global steps, and nothing is learned: is the schedule over "
                "(in the run of a recipe after optimizer.total_steps)? Begin another run from these parameters, with a "
                "longer one",
                IDLE,
            )

    def _note(self, step: int, rates: Rates) -> None:
        if self._is_ordered:
            if not self._is_told_of_order:
                self._is_told_of_order = True
                logger.warning(
                    "the loop sets the learning rate to %g at global step %d, and the organisers amended it: their "
                    "order counts, and no loop sets it any more. %s",
                    rates[0],
                    step,
                    _REMEDY,
                )
            return
        if len(rates) > MAX_GROUPS or not all(0.0 <= rate <= MAX_LEARNING_RATE for rate in rates):
            self._object(f"the loop sets {counted(len(rates), 'learning rate')} as {rates[0]} at global step {step}")
            return
        if self._said is not None and self._said[0] == step and not _are_near(self._said[1], rates):
            self._object(
                f"the loop sets the learning rate to {self._said[1][0]:.6g} and to {rates[0]:.6g} within global step "
                f"{step}, as if each of its iterations were one"
            )
        last, self._said = self._said, (step, rates)
        if self.is_heard and not self._has_schedule:
            self.wanted = rates
            if self._since_taken_over < SILENT:
                self._look_for_beginning(step, rates, None if last is None else last[1])

    def _look_for_beginning(self, step: int, rates: Rates, last: Rates | None) -> None:
        """Warn if a loop whose program was started again begins its schedule anew: its rates are higher than those of
        the run, or they are lower, as in a warm-up, and rise from there. At its end a schedule may fall by any share,
        but does not rise. `last` are those that the loop set before, since the state came from elsewhere.
        """
        has = self._rates()
        # none rises by more than a linear warm-up from 0
        before, share = (has, JUMP + 2.0 / max(1, step - 1)) if last is None else (last, NEAR)
        rises = step > 0 and any(rate > was * (1.0 + share) for was, rate in zip(before, rates, strict=True))
        if rises:
            logger.warning(
                "the loop sets the learning rate to %g at global step %d, to which the run came with %g, and all peers "
                "follow it. If it counts its own iterations, which began again, it takes the run back to the beginning "
                "of the schedule. %s",
                rates[0],
                step,
                has[0],
                _REMEDY,
            )
        fell = last is None and any(rate < was * (1.0 - JUMP) for was, rate in zip(has, rates, strict=True))
        if rises or step == 0 or not (fell or _are_near(before, rates)):
            self._since_taken_over = math.inf

    def _object(self, what: str) -> None:
        self._times += 1
        text = f"{what}: the run's numbers count. {_REMEDY}"
        if self._times >= REFUSED_AT:
            self._refusal = text
        else:
            logger.warning("%s", text)

    def _rates(self) -> Rates:
        return tuple(float(group.get("lr") or 0.0) for group in self._optimizer.param_groups)


def _sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    """How many parameters each group has, also of one that was added to an optimizer that is together with others."""
    return [len(group["params"]) for each in members_of(optimizer) for group in each.param_groups]


def _numbers_in(group: dict[str, Any]) -> dict[str, Any]:
    """Its settings that are a number or a few: others are switches and names."""
    return {key: _copied(value) for key, value in group.items() if key != "params" and _has_numbers(value)}


def _has_numbers(value: Any) -> bool:
    return all(map(_has_numbers, value)) if isinstance(value, tuple | list) else number_of(value) is not None


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _put(group: dict[str, Any], numbers: dict[str, Any]) -> None:
    for key, value in numbers.items():
        if isinstance(group.get(key), torch.Tensor):
            group[key].fill_(value)
        else:
            group[key] = float(value) if isinstance(value, torch.Tensor) else value


def _are_near(one: Iterable[float], other: Iterable[float]) -> bool:
    one, other = tuple(one), tuple(other)
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=NEAR) for a, b in zip(one, other, strict=True))
