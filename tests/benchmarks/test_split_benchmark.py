"""The benchmark of split learning: its ways to train, the line, and what it takes as a failure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks._split_link import link_figures
from benchmarks._split_training import train_centrally, train_in_turns
from benchmarks.split import leakage, shortcomings
from minga.split import LeakageSettings


def test_a_network_cut_in_two_and_in_three_comes_to_the_same_and_learns_as_the_whole_does() -> None:
    cut = [train_in_turns(variant, 3, 4, seed=1) for variant in ("vanilla", "u-shaped")]
    assert cut[0] == cut[1]
    assert cut[0] == pytest.approx(train_centrally(3, 4, seed=1), abs=0.05)
    assert cut[0] > 0.75


@pytest.mark.parametrize(("codec", "bound"), [("float32", 508.6), ("float16", 1017.3)])
def test_the_line_is_nearly_used_up(codec: str, bound: float) -> None:
    found = link_figures(codec, 3, seed=0)
    assert found["bound"] == bound
    assert 0.8 < found["share"] < 1.0


def test_the_figures_of_leakage_are_means_over_seeds() -> None:
    quick = LeakageSettings("wine", (1.0,), epochs=2, decoder_widths=(8,), decoder_epochs=1, permutations=2)
    found, first = leakage(quick, 2), leakage(quick, 1)
    assert found["no_peek"]["weights"] == [1.0, 1.0]
    assert found["plain"]["accuracy"] != first["plain"]["accuracy"] or found["plain"] != first["plain"]


KEPT = {"central": 0.96, "vanilla": 0.955, "splitfed-1": 0.96}
LEAKED: dict[str, Any] = {
    "plain": {"accuracy": 0.96, "distance_correlation": 0.9, "decoder_error": 0.01},
    "no_peek": {"accuracy": 0.95, "distance_correlation": 0.4, "decoder_error": 0.02},
}
LINKS = [{"codec": "float32", "share": 0.9}]


def test_what_is_promised_is_what_is_checked() -> None:
    assert shortcomings(KEPT, LEAKED, LINKS) == []
    assert shortcomings({**KEPT, "splitfed-1": 0.94}, LEAKED, LINKS) == ["splitfed-1 loses accuracy"]
    assert shortcomings(KEPT, LEAKED, [{"codec": "float16", "share": 0.7}]) == ["float16 is slow"]
    for name, value, missing in (
        ("distance_correlation", 0.46, "NoPeek does not halve"),
        ("accuracy", 0.93, "NoPeek loses accuracy"),
        ("decoder_error", 0.01, "NoPeek does not help"),
    ):
        worse = copy.deepcopy(LEAKED)
        worse["no_peek"][name] = value
        assert shortcomings(KEPT, worse, LINKS) == [missing]
