"""How often parameters are averaged follows from how far they drift."""

from __future__ import annotations

import pytest

from minga.training.agreement.comparison import LONGEST, AveragingInterval, Drift

CLOSE, MIDDLE, FAR = Drift(0.04, 4.0), Drift(0.4, 4.0), Drift(2.0, 4.0)


def of(every: int = 0, *, fixed: int = 0, is_useful: bool = True) -> AveragingInterval:
    interval = AveragingInterval(fixed, 10, is_useful=lambda: is_useful)
    interval.every = every
    return interval


def test_nothing_is_averaged_until_two_peers_differ() -> None:
    assert of().choose(10, None) == 0
    assert of().choose(13, CLOSE) == 10
    assert not of().is_due(10, 0)


@pytest.mark.parametrize(("drift", "then"), [(CLOSE, 80), (MIDDLE, 40), (FAR, 20), (None, 40)])
def test_the_interval_follows_the_drift_at_each_averaging(drift: Drift | None, then: int) -> None:
    assert of(40).choose(80, drift) == then
    assert of(40).choose(81, drift) == 40


def test_the_interval_has_bounds() -> None:
    longest = LONGEST * 10
    assert of(longest).choose(longest, CLOSE) == longest
    assert of(10).choose(10, FAR) == 10


def test_the_run_spec_or_the_strategy_may_decide() -> None:
    assert of(fixed=7).choose(10, None) == of(7, fixed=7).choose(14, FAR) == 7
    assert of(fixed=7).is_fixed
    assert [step for step in range(1, 30) if of(fixed=7).is_due(step, 4)] == [7, 14, 21, 28], "whatever a leader says"
    sharing = of(is_useful=False)
    assert sharing.choose(10, CLOSE) == 0
    assert not sharing.is_due(10, 10)
    assert not of().is_due(3, 1), "more often than states are compared"
    assert of().is_due(20, 10)
    assert [of(10).follow(20), of(10).follow(10), of(fixed=7).follow(20), of(is_useful=False).follow(20)] == [
        True,
        False,
        False,
        False,
    ]
