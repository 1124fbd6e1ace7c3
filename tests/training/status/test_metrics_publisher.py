from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import LARGEST
from minga.network.rpc.node import Node
from minga.training.record_kinds import RUN_KINDS, Metrics
from minga.training.status import metrics_publisher
from minga.training.status.metrics_publisher import METRICS_PERIOD_S, MetricsPublisher


class Surroundings:
    """A clock that is turned by hand, and what was put on the board."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[Metrics] = []
        self._due: list[tuple[float, Callable[[], None]]] = []

    @property
    def run_clock(self) -> Surroundings:
        return self

    def now(self) -> float:
        return 1.7e9 + self.now_s

    def put(self, metrics: Metrics) -> None:
        RUN_KINDS.encode(metrics)
        self.told.append(metrics)

    def traffic(self) -> tuple[int, int]:
        return 7, 11

    def soon(self, seconds: float, function: Callable[[], None]) -> None:
        self._due.append((self.now_s + seconds, function))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        due, self._due = self._due, []
        for at_s, function in due:
            function() if at_s <= self.now_s else self._due.append((at_s, function))


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    found = Surroundings()
    monkeypatch.setattr(metrics_publisher.time, "monotonic", lambda: found.now_s)
    return found


def publisher(around: Surroundings) -> MetricsPublisher:
    board: Any = around
    return MetricsPublisher(cast(Board, board), cast(Node, board), around.soon)


def test_short_steps_are_told_together_and_nothing_of_them_is_lost(around: Surroundings) -> None:
    metrics = publisher(around)
    for step in range(1, 13):
        metrics.count(8, 0.5)
        metrics.count(8, None)
        metrics.publish(step)
        around.pass_s(0.25 * METRICS_PERIOD_S)
    assert [told.step for told in around.told] == [1, 5, 9]
    around.pass_s(METRICS_PERIOD_S)
    assert around.told[-1] == Metrics(12, 6.0, 192, 12, 7, 11, around.told[0].since)


def test_long_steps_are_told_at_once_and_so_is_the_last(around: Surroundings) -> None:
    metrics = publisher(around)
    for step in (1, 2, 3):
        metrics.count(4, 1.0)
        metrics.publish(step)
        around.pass_s(0.0)
        assert around.told[-1].step == step
        around.pass_s(2 * METRICS_PERIOD_S)
    metrics.publish(4)
    around.pass_s(0.0)
    metrics.publish(5, every_s=0.0)
    around.pass_s(0.0)
    assert [told.step for told in around.told] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("outlier", [3e18, -1e300, float("inf"), float("nan")])
def test_a_loss_that_no_sum_can_hold_is_left_out_and_the_others_still_count(
    around: Surroundings, outlier: float
) -> None:
    metrics = publisher(around)
    for step, loss in enumerate((0.25, outlier, 0.5), 1):
        metrics.count(8, loss)
        metrics.publish(step, every_s=0.0)
        around.pass_s(0.0)
    assert around.told[-1] == Metrics(3, 0.75, 24, 2, 7, 11, around.told[0].since)


def test_a_sum_that_is_full_keeps_the_count_of_samples_going(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_publisher, "MOST_LOSS", LARGEST)
    metrics = publisher(around)
    for _ in range(3):
        metrics.count(8, 0.4 * LARGEST)
    metrics.publish(3)
    around.pass_s(0.0)
    assert around.told[-1] == Metrics(3, 0.8 * LARGEST, 24, 2, 7, 11, around.told[0].since)
