"""Training together: the optimizer, steps, state and checkpoints.

    class Capped(Synchronous): ...                  a package's module

    [project.entry-points."minga.strategies"]       its pyproject.toml
    capped = "my_strategies:Capped"

What is listed here is public: the interface of strategies, and those of minga to build upon.
`minga.testing.check_strategy` says whether a strategy keeps what the interface promises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.averaging._strategy_choice import STRATEGIES, StrategyFacts
    from minga.training._delayed import Delayed
    from minga.training._strategy_interface import Strategy
    from minga.training._synchronous import Synchronous

__all__ = ["STRATEGIES", "Delayed", "Strategy", "StrategyFacts", "Synchronous"]

_LATE = {  # imported when they are first asked for
    "Delayed": "minga.training._delayed",
    "STRATEGIES": "minga.averaging._strategy_choice",
    "Strategy": "minga.training._strategy_interface",
    "StrategyFacts": "minga.averaging._strategy_choice",
    "Synchronous": "minga.training._synchronous",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
