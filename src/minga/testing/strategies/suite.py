"""All that is checked of a strategy.

    @pytest.mark.parametrize("check", STRATEGY_CHECKS)
    def test_my_strategy(check):
        check(MyStrategy)

A strategy with settings is checked with some of them: `check(MyStrategy, fragments=3)`.

Each check raises `Violation` with the case that failed. All numbers are exact in float32, so that all sums are.
What is said of gradients is checked where the strategy's facts say that it sends these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minga.testing.arguments import require_class
from minga.testing.strategies.contributions import (
    check_absorb,
    check_alone,
    check_buffers,
    check_clipping,
    check_facts,
    check_late_micro_batches,
    check_mean,
    check_repeated_calls,
    check_score,
    check_take_back,
    check_uncounted,
    check_unequal_speeds,
)
from minga.testing.strategies.faults import check_broken_sum, check_interrupted, check_not_finite, check_nothing
from minga.testing.strategies.states import (
    check_conclusion,
    check_dtypes,
    check_fragments,
    check_missed_rounds,
    check_parts_of_the_state,
    check_schedule,
    check_shared_part,
)
from minga.training.strategy.interface import Strategy

STRATEGY_CHECKS: Final[tuple[Callable[..., None], ...]] = (
    check_facts,
    check_mean,
    check_clipping,
    check_take_back,
    check_repeated_calls,
    check_late_micro_batches,
    check_alone,
    check_unequal_speeds,
    check_absorb,
    check_uncounted,
    check_buffers,
    check_shared_part,
    check_parts_of_the_state,
    check_missed_rounds,
    check_dtypes,
    check_fragments,
    check_schedule,
    check_score,
    check_conclusion,
    check_nothing,
    check_not_finite,
    check_broken_sum,
    check_interrupted,
)
"""All checks, each taking the class and some of its settings, and raising `Violation` if it fails."""


def check_strategy(kind: type[Strategy], **settings: Any) -> None:
    """Run every check in turn. Raises the first failure, and `TypeError` for what is no class of a strategy."""
    require_class(kind, Strategy, "check_strategy({})")
    for check in STRATEGY_CHECKS:
        check(kind, **settings)
