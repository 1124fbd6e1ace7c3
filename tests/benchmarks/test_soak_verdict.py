"""What the soak finds wrong, shown on made-up courses of events."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks._recovery_swarm import Told
from benchmarks._soak_verdict import WINDOW_S, Course, growth, judge, leaks

COURSE = Course(churn_s=40.0, warm_s=60.0, quiet_s=140.0, end_s=200.0)
STAYER = "peer-1"


def told(steps: dict[str, list[float]], vitals: dict[str, Any], since_s: float = 0.0) -> list[Told]:
    """Steps at the given moments, each with a lower loss and one digest for all, and vitals each second."""
    log = [Told(float(s), STAYER, "vitals", vitals) for s in range(round(since_s), 200)]
    for name, moments in steps.items():
        for step, moment in enumerate(moments):
            log.append(Told(moment, name, "step.applied", {"step": step}))
            standing = {"step": step, "loss": 2.0 - moment / 200, "digest": f"of {step}"}
            log.append(Told(moment, name, "standing", standing))
    return sorted(log, key=lambda t: t.t)


def vitals(**changes: int) -> dict[str, Any]:
    return {"rss_bytes": 100 << 20, "tasks": 30, "threads": 6, "files": 20, "neighbours": 5} | changes


def steady(until_s: int = 200) -> list[float]:
    return [float(s) for s in range(1, until_s)]


def test_a_steady_course_has_no_fault() -> None:
    figures, wrong = judge(told({STAYER: steady()}, vitals()), [STAYER], {}, COURSE)
    assert wrong == []
    assert figures["longest_stall_s"] == pytest.approx(1.0)
    assert figures["leaked"] == {STAYER: {"tasks": 0, "threads": 0, "files": 0}}


def test_a_stall_counts_up_to_the_end_of_each_peer() -> None:
    log = told({STAYER: steady(), "peer-2": steady(100), "peer-3": steady(100)}, vitals())
    _, wrong = judge(log, [STAYER], {"peer-2": 99.5}, COURSE)
    assert wrong == ["peer-3 took no step for 101.0 s"]


def test_growth_and_leaks_are_seen() -> None:
    before, after = told({}, vitals()), told({}, vitals(rss_bytes=110 << 20, tasks=40), since_s=150)
    log = [t for t in before if t.t < 150] + after
    assert growth(log, COURSE) == pytest.approx(0.1)
    assert leaks(log, COURSE) == {"tasks": 10, "threads": 0, "files": 0}
    _, wrong = judge(log, [STAYER], {}, COURSE)
    assert [f"{STAYER} grew by 10.0 %", f"{STAYER} has 10 more tasks than before"] == wrong[:2]


def test_leaks_need_as_many_neighbours_as_before() -> None:
    log = [t for t in told({}, vitals()) if t.t < 200 - WINDOW_S] + told({}, vitals(neighbours=3), since_s=185)
    with pytest.raises(ValueError, match="as many neighbours"):
        leaks(log, COURSE)


def test_different_states_and_a_loss_that_rises_are_seen() -> None:
    log = told({STAYER: steady()}, vitals())
    log.append(Told(50.5, "peer-2", "standing", {"step": 7, "loss": 1.0, "digest": "another"}))
    log += [Told(199.5, STAYER, "standing", {"step": 1000 + k, "loss": 9.0, "digest": "x"}) for k in range(100)]
    _, wrong = judge(log, [STAYER], {}, COURSE)
    assert any("loss does not keep falling" in fault for fault in wrong)
    assert "different states after step 7" in wrong
