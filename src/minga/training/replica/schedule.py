"""The learning-rate schedule of a run: torch's scheduler, advanced once for each global step and by nobody else.

A schedule may be shorter than its run: `OneCycleLR` raises an error beyond its last step, as does a list of rates. All
peers would end there, at one step, and again after each resume. So the last rate is held from there on. Whether it is
follows from the scheduler's state alone, so that all peers do so alike, newcomers included.
"""

from __future__ import annotations

import copy
import logging
from functools import partial
from types import SimpleNamespace
from typing import Final

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from minga.core.errors import ConfigurationError

logger = logging.getLogger("minga.training")

UNKNOWN: Final = -1
MOST_TRIED: Final = 20_000
"""Steps of a schedule that are tried at the start: some tenths of a second."""
LONG: Final = 2
"""A schedule that is so many times as long as its run was made for another number of steps."""
_LENGTH: Final = "num_training_steps"
_ENDS: Final = (ValueError, LookupError)
"""What a schedule raises beyond its end."""


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
            if (length := length_of(scheduler)) > LONG * stop:
                logger.warning(
                    "the learning-rate schedule goes over %d global steps, and the run ends after %d: the rate hardly "
                    "falls. Make the schedule for %d steps, which is peer.spec.training.stop_after_steps",
                    length,
                    stop,
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
        vars(self.scheduler.optimizer)["_opt_called"] = True
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
        groups = [{k: copy.copy(v) for k, v in g.items() if k != "params"} for g in scheduler.optimizer.param_groups]
        stand_in = SimpleNamespace(param_groups=groups, step=scheduler.optimizer.step, _opt_called=True)
        try:
            tried = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
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


def length_of(scheduler: LRScheduler) -> int:
    """The steps that a scheduler of torch, or of `transformers.get_scheduler`, was made for; 0 if it does not say."""
    inner = [length_of(each) for each in getattr(scheduler, "_schedulers", ())]
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
    if scheduler.optimizer is not optimizer:
        raise ConfigurationError("the scheduler belongs to another optimizer: make it with the one that is wrapped")
