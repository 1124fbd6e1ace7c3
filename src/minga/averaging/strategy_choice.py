"""Which strategies a run can choose from, and what planners, displays and simulations may know of each.

Nobody but the strategy itself asks for its name: they ask for its facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry

Payload = Literal["gradient", "pseudo-gradient", "parameters"]
Contributors = Literal["all", "best"]
Weights = Literal["samples", "equal"]


@dataclass(frozen=True)
class StrategyFacts:
    """What follows from a run's strategy, the same on all peers.

    max_in_flight: rounds that may run while the trainer computes, 0 or 1. With 0 the trainer is parked meanwhile.
    keeps_late_micro_batches: one that ends after its step was sealed counts towards the next; else it is dropped.
    vectors: how many vectors as long as the averaged one it holds.
    payload: the quantity whose mean is taken.
    keeps_uncounted: the strategy itself keeps a contribution that a round counted without, for a later one. Else it
        forgets it, and what keeps it is the residual of a codec or of a sketch that leaves something out, if there is
        one. So it never counts twice.
    contributors: whose contributions a round takes: those of all, or that of the member with the best score alone (see
        `Strategy.score`), while all others only receive. The last round of a run takes those of all.
    weights: what a contribution counts in a mean of several: its samples, or as much as any other.

    Raises `ConfigurationError` for values out of range.
    """

    max_in_flight: int
    keeps_late_micro_batches: bool
    vectors: int
    payload: Payload = "gradient"
    keeps_uncounted: bool = False
    contributors: Contributors = "all"
    weights: Weights = "samples"

    @property
    def shares_optimizer(self) -> bool:
        """Whether the optimizer steps by means, so that its state is the same for all; else each peer has its own."""
        return self.payload == "gradient"

    def __post_init__(self) -> None:
        if self.max_in_flight not in (0, 1) or self.vectors < 0:
            raise ConfigurationError(f"strategy: {self} has other than 0 or 1 rounds in flight, or less than 0 vectors")
        if self.payload not in get_args(Payload):
            raise ConfigurationError(f"strategy: {self} has an unknown payload")
        if self.contributors not in get_args(Contributors) or self.weights not in get_args(Weights):
            raise ConfigurationError(f"strategy: {self} takes other contributions or weights than there are")


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
