"""The learning rates of a run: the schedule that all peers advance together, and rates that a program's loop sets.

The schedule is torch's scheduler, advanced once for each global step and by nobody else. It may be shorter than its
run: `OneCycleLR` raises an error beyond its last step, as does a list of rates. All peers would end there, at one step,
and again after each resume. So the last rate is held from there on. Whether it is follows from the scheduler's state
alone, so that all peers do so alike, newcomers included.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from minga.averaging.messages import MAX_GROUPS, MAX_LEARNING_RATE
from minga.core.errors import ConfigurationError
from minga.core.units import counted
from minga.optim.together import Together, members_of

logger = logging.getLogger("minga.training")

UNKNOWN: Final = -1
MOST_TRIED: Final = 20_000
"""Steps of a schedule that are tried at the start: some tenths of a second."""
LONG: Final = 2
"""A schedule that is so many times as long as its run, or as short, was made for another number of steps."""
_LENGTH: Final = "num_training_steps"
_ENDS: Final = (ValueError, LookupError)
"""What a schedule raises beyond its end."""


class SchedulesTogether(ChainedScheduler):
    """Schedulers of optimizers that are together in `optimizer`, each of which changes the rates of its own."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Together) -> None:
        self._schedulers = list(schedulers)  # torch's own constructor wants one optimizer for all
        self.optimizer = optimizer
        self._note_rates()

    def step(self) -> None:  # type: ignore[override]  # that of one scheduler takes an epoch
        """Advance each of them."""
        super().step()
        self._note_rates()

    @property
    def schedulers(self) -> Sequence[LRScheduler]:
        """Each of them."""
        return self._schedulers

    def _note_rates(self) -> None:
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class Schedule:
    """What `scheduler`, if there is one, makes of learning rates of `optimizer`, up to step `stop` if that is known.

    Raises `ConfigurationError` unless `scheduler` depends on nothing but the number of steps of `optimizer`.
    """

    def __init__(self, scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer, stop: int | None) -> None:
        _check(scheduler, optimizer)
        self.scheduler = scheduler
        self._is_told = False
        self.note()
        if scheduler is not None and stop is not None:
            self._try(scheduler, stop)
            length = length_of(scheduler)
            is_short = 0 < LONG * length < stop and not self._is_told
            if length > LONG * stop or is_short:
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
        self._stands_at = self._place()

    def check(self) -> None:
        """Raise `ConfigurationError` if somebody else advanced the scheduler, which would differ between peers."""
        if self._place() != self._stands_at:
            raise ConfigurationError(
                "the learning-rate scheduler was stepped by the program; leave that to minga.Optimizer, which does it "
                "once per global step"
            )

    def advance(self) -> None:
        """A global step was taken."""
        if self.scheduler is None:
            return
        before = self.scheduler.state_dict()
        # A peer that only applies the averages of others takes no step of its own, of which torch would warn.
        for optimizer in _optimizers_of(self.scheduler):
            vars(optimizer)["_opt_called"] = True
        try:
            self.scheduler.step()
        except _ENDS as error:
            if self._stands_at < 1:
                raise
            self.scheduler.load_state_dict(before)
            self._tell(self._stands_at, error)
        finally:
            self.note()

    def _try(self, scheduler: LRScheduler, stop: int) -> None:
        """Say at the start where the schedule ends before the run does."""
        try:
            tried = copy.deepcopy(scheduler, {id(each): _stand_in(each) for each in _optimizers_of(scheduler)})
        except Exception:  # what a program put into it may not be copied: then it is told when it ends
            return
        for at in range(max(0, self._stands_at), min(stop, MOST_TRIED)):
            try:
                tried.step()
            except _ENDS as error:
                if at >= 1:
                    self._tell(at, error, stop)
                return
            except Exception:  # a mistake, which the run shows where it comes to it
                return

    def _tell(self, end: int, error: Exception, stop: int | None = None) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the learning-rate schedule ends at global step %d%s (%s): from there on its last rate is held",
                end,
                "" if stop is None else f", and the run at {stop}",
                error,
            )

    def _place(self) -> int:
        """The steps that the scheduler has seen; one that chains others counts by them."""
        first = next(iter(getattr(self.scheduler, "_schedulers", ())), None)
        return int(getattr(self.scheduler, "last_epoch", getattr(first, "last_epoch", UNKNOWN)))


def _optimizers_of(scheduler: LRScheduler) -> list[torch.optim.Optimizer]:
    """Those whose rates it changes, and the one that they are together in."""
    return [scheduler.optimizer, *(each.optimizer for each in getattr(scheduler, "_schedulers", ()))]


def _stand_in(optimizer: torch.optim.Optimizer) -> SimpleNamespace:
    groups = [{k: copy.copy(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return SimpleNamespace(param_groups=groups, step=optimizer.step, _opt_called=True)


def length_of(scheduler: LRScheduler) -> int:
    """The steps that a scheduler of torch, or of `transformers.get_scheduler`, was made for; 0 if it does not say."""
    inner = [length_of(each) for each in getattr(scheduler, "_schedulers", ())]
    if milestones := getattr(scheduler, "_milestones", None):  # one after the other
        return milestones[-1] + inner[-1] if inner[-1] else 0
    named = [getattr(scheduler, name, None) for name in ("total_steps", "T_max")]
    named += [function.keywords.get(_LENGTH) for function in _partials(scheduler)]
    return max([int(each) for each in named if isinstance(each, int)] + inner, default=0)


def stretch(scheduler: LRScheduler, steps: int) -> None:
    """Have a schedule of `transformers.get_scheduler` go over so many steps: scripts make it for those of their own
    loop.
    """
    functions = getattr(scheduler, "lr_lambdas", None)
    if not isinstance(functions, list) or not any(_LENGTH in each.keywords for each in _partials(scheduler)):
        return
    for place, function in enumerate(functions):
        if isinstance(function, partial) and _LENGTH in function.keywords:
            if function.keywords[_LENGTH] != steps:
                logger.info("the learning-rate schedule goes over the %d global steps of the run", steps)
            functions[place] = partial(function.func, *function.args, **{**function.keywords, _LENGTH: steps})


def _partials(scheduler: LRScheduler) -> list[partial[float]]:
    return [each for each in getattr(scheduler, "lr_lambdas", ()) if isinstance(each, partial)]


def _check(scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, ReduceLROnPlateau):
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
        self._sizes = _sizes(optimizer)
        self.keep()

    def go_by_order(self, *, is_ordered: bool) -> None:
        """The organisers amended the rate, or their order counts no more."""
        self._is_ordered = is_ordered
        if is_ordered:
            self.wanted, self._said, self._before = (), None, None

    def keep(self) -> None:
        """The groups have the numbers of the run now."""
        self._kept = [
            {key: _copied(value) for key, value in group.items() if _is_number(value)}
            for group in self._optimizer.param_groups
        ]

    def begin_anew(self) -> None:
        """The state was replaced: the groups have its numbers."""
        self.wanted, self._said, self._before = (), None, None
        self._used.clear()
        self.keep()

    def changed(self) -> set[str]:
        """Which numbers of the groups are others now than those of the run. Raises `ConfigurationError` if they have
        other parameters.
        """
        if self._sizes != _sizes(self._optimizer):
            raise ConfigurationError(FIXED_PARAMETERS)
        pairs = zip(self._optimizer.param_groups, self._kept, strict=True)
        return {key for group, kept in pairs for key, value in kept.items() if group.get(key) != value}

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
        self._said = step, rates
        if self.is_heard and not self._has_schedule:
            self.wanted = rates

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


def _is_number(value: Any) -> bool:
    """Whether this setting of a group is a number or a few: others are switches and names."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if isinstance(value, tuple | list):
        return all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


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
