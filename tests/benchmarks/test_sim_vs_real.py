"""The simulated rounds of `benchmarks.sim_vs_real`, as far as no real network is needed to judge them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import sim_vs_real
from benchmarks._links_rounds import are_stable
from benchmarks._links_setups import setups
from benchmarks._links_virtual import simulate
from tests.worlds.seeds import soaked


@pytest.mark.parametrize(
    ("name", "mib", "equal"), [("A", 2.0, 1.0), soaked("home", 2.0, 50 / 28), soaked("E", 4.0, 1.46)]
)
def test_simulated_rounds_take_what_the_lines_allow(name: str, mib: float, equal: float) -> None:
    """Peers that are told no rates find plans as fast as the true rates allow, and equal parts cost what they must."""
    setup = replace(setups()[name], mib=mib)
    rounds = simulate(setup, {"adaptive": 1, "equal": 1}, seed=1, most_warmup=10)
    assert not rounds.failures
    assert rounds.median_s("adaptive") == pytest.approx(setup.bound_s(), rel=0.15)
    assert rounds.median_s("equal") == pytest.approx(equal * setup.bound_s(), rel=0.15)


def test_plans_are_stable_once_three_in_a_row_expect_what_the_one_before_did() -> None:
    assert are_stable([9.0, 1.0, 1.0, 1.01, 1.0])
    assert not are_stable([1.0, 1.0, 1.0])
    assert not are_stable([1.0, 1.0, 1.0, 1.1])
    assert not are_stable([0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"predicted_s": 1.14, "measured_s": 1.0}, True),
        ({"predicted_s": 1.16, "measured_s": 1.0}, False),
        ({"predicted_s": 0.84, "measured_s": 1.0}, False),
        ({"others": {"equal": {"predicted_s": 2.0, "measured_s": 1.0}}}, False),
        ({"forecast_s": 1.2}, False),
        ({"correct": False}, False),
    ],
)
def test_what_passes(changed: dict[str, Any], expected: bool) -> None:
    assert sim_vs_real.is_ok({"predicted_s": 1.0, "measured_s": 1.0, "correct": True, **changed}) is expected


def test_where_there_are_no_namespaces_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim_vs_real, "why_unavailable", lambda: "only root may make network namespaces")
    monkeypatch.setattr("sys.argv", ["sim_vs_real", "--setup", "A", "--json"])
    assert sim_vs_real.main() == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["unavailable"] == "only root may make network namespaces"
    assert summary["setups"] == {}
