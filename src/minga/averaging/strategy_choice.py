"""Which strategies a run can choose from, and what planners, displays and simulations may know of each.

Nobody but the strategy itself asks for its name: they ask for its facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry


@dataclass(frozen=True)
class StrategyFacts:
    """What follows from a run's strategy, the same on all peers.

    overlaps: computing goes on while a round runs; else the trainer waits for it.
    keeps_late_micro_batches: one that ends after its step was sealed counts towards the next; else it is dropped.
    vectors: how many vectors as long as the averaged one it holds.
    """

    overlaps: bool
    keeps_late_micro_batches: bool
    vectors: int


STRATEGIES: Final[Registry[Any]] = Registry(
    "minga.strategies",
    "strategy",
    {
        "synchronous": "minga.training.strategy.synchronous:Synchronous",
        "delayed": "minga.training.strategy.delayed:Delayed",
    },
)
"""Subclasses of `minga.training.strategy.interface.Strategy`."""


def facts_of(name: str) -> StrategyFacts:
    """The facts of the strategy called `name`. Raises `ConfigurationError` if no installed package brings it."""
    facts = getattr(STRATEGIES.get(name), "facts", None)
    if not isinstance(facts, StrategyFacts):
        raise ConfigurationError(f"strategy: what an installed package brings as {name!r} is none")
    return facts


def check_strategy_choice(name: object) -> None:
    """Raise `ConfigurationError` unless a run can name `name` as its strategy on this machine."""
    if name not in STRATEGIES.names():
        known = ", ".join(STRATEGIES.names())
        raise ConfigurationError(f"strategy: {name!r} is none of {known}, and no installed package brings it")
