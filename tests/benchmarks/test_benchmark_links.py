"""The setups of `benchmarks.links` are those of the paper, their simulated rounds take what the lines allow, and what
counts as passed is what was meant.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import links
from benchmarks._links_rounds import are_stable
from benchmarks._links_setups import CROWD_SCALE, GIGABIT, HOME_SCALE, SCALE, setups
from benchmarks._links_virtual import simulate
from benchmarks.links import is_ok
from tests.worlds.seeds import soaked


@pytest.mark.parametrize(
    ("name", "vectors"), [("A", 1.75), ("B", 9.375), ("C", 5.0), ("D", 5.614), ("home", 50.0), ("sites", 5.0)]
)
def test_the_bounds_are_the_known_ones(name: str, vectors: float) -> None:
    setup = setups()[name]
    gigabit = GIGABIT * {"C": CROWD_SCALE, "home": HOME_SCALE}.get(name, SCALE) / SCALE
    assert setup.bound_s() == pytest.approx(vectors * 32 * setup.numel / gigabit, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "figures", "expected"),
    [
        ("A", {"measured_s": 1.15}, True),
        ("A", {"measured_s": 1.16}, False),
        ("A", {"correct": False}, False),
        ("C", {"equal_parts_s": 1.8}, True),
        ("C", {"equal_parts_s": 1.6}, False),
        ("D", {"parameter_server_s": 1.1}, True),
        ("D", {"parameter_server_s": 0.9}, False),
        ("D", {"equal_parts_s": 0.9}, False),
        ("home", {"equal_parts_s": 1.5}, False),
        ("sites", {"flat_s": 4.0, "two_level_s": 2.0}, True),
        ("sites", {"flat_s": 3.9, "two_level_s": 2.0}, False),
        ("sites", {"flat_s": 4.0, "two_level_s": None}, False),
        ("A", {"simulated": {"measured_s": 0.86, "equal_parts_s": 3.4}}, True),
        ("A", {"simulated": {"measured_s": 0.84}}, False),
        ("A", {"simulated": {"measured_s": 1.0, "equal_parts_s": 3.5}}, False),
    ],
)
def test_what_passes(name: str, figures: dict[str, Any], expected: bool) -> None:
    usual = {"correct": True, "measured_s": 1.0, "bound_s": 1.0, "equal_parts_s": 3.0, "parameter_server_s": 3.0}
    assert is_ok(name, usual | figures) is expected


def test_five_peers_must_train_three_of_them_as_clients_and_survive() -> None:
    good = {"peers_trained": 5, "clients": 3, "survived_public_peer_death": True}
    assert is_ok("nat", good)
    wrong = {"peers_trained": 4, "clients": 2, "survived_public_peer_death": False}
    for name, value in wrong.items():
        assert not is_ok("nat", good | {name: value})


@pytest.mark.parametrize(
    ("name", "mib", "equal"), [("A", 2.0, 1.0), soaked("home", 2.0, 50 / 28), soaked("E", 4.0, 1.46)]
)
def test_simulated_rounds_take_what_the_lines_allow(name: str, mib: float, equal: float) -> None:
    """Peers that are told no rates find plans as fast as the true rates allow, and equal parts cost what they must."""
    setup = replace(setups()[name], mib=mib)
    seconds = simulate(setup, {"adaptive": 1, "equal": 1}, seed=1, most_warmup=10)
    assert seconds["adaptive"] == pytest.approx(setup.bound_s(), rel=0.15)
    assert seconds["equal"] == pytest.approx(equal * setup.bound_s(), rel=0.15)


def test_plans_are_stable_once_three_in_a_row_expect_what_the_one_before_did() -> None:
    assert are_stable([9.0, 1.0, 1.0, 1.01, 1.0])
    assert not are_stable([1.0, 1.0, 1.0])
    assert not are_stable([1.0, 1.0, 1.0, 1.1])
    assert not are_stable([0.0, 0.0, 0.0, 0.0])


def test_where_there_are_no_namespaces_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links, "why_unavailable", lambda: "only root may make network namespaces")
    monkeypatch.setattr("sys.argv", ["links", "--setup", "A", "--json"])
    assert links.main() == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["unavailable"] == "only root may make network namespaces"
    assert summary["setups"] == {}
