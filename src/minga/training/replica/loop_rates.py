"""Learning rates that the program's loop sets, as many scripts do in each iteration, where those of the run count.

Theory of operation. The numbers of the optimizer's parameter groups (learning rates, weight decay, momentum) belong to
the state that all peers share. A loop that sets them by its own iterations sets others on each machine, and peers would
apply equal means to different ends. So at each micro-batch what the loop changed is put back, and then:

* What the loop of the organiser sets is taken by all peers: its peer says it with its reports, the leader writes it
  into the plan, and the update of the round that counts is made by it (`Plan.rates`).
* The loops of others may set what the run has anyway. With rounds in flight a loop is one step before or behind.
* A loop that sets something else, or several values within one global step, is warned the first time, and refused the
  second time: its program believes in a schedule that nobody follows.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from minga.averaging.messages import MAX_GROUPS, MAX_LEARNING_RATE
from minga.core.errors import ConfigurationError
from minga.core.units import counted

logger = logging.getLogger("minga.training")

REFUSED_AT: Final = 2
"""The time at which a loop that sets other numbers than the run has is refused."""
SILENT: Final = 10
"""Updates without rates of the organiser's loop after which the others are told that theirs stay as they are."""
NEAR: Final = 1e-6
"""Relative difference of rates that machines with other mathematical libraries may compute by one formula."""
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
        self.keep()

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

    def look(self, step: int) -> None:
        """A micro-batch of `step` ended: put back what the loop changed.

        Raises `ConfigurationError` when that was something else than the run has for the second time.
        """
        pairs = list(zip(self._optimizer.param_groups, self._kept, strict=True))
        changed = {key for group, kept in pairs for key, value in kept.items() if group.get(key) != value}
        if changed:
            rates = self._rates()
            for group, kept in pairs:
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

    def _note(self, step: int, rates: Rates) -> None:
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
        return tuple(float(group.get("lr", 0.0)) for group in self._optimizer.param_groups)


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
