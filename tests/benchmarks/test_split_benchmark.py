"""The benchmark of split learning: its ways to train, the line, and what it takes as a failure."""

from __future__ import annotations

import pytest

from benchmarks._split_link import link_figures
from benchmarks._split_training import train_centrally, train_in_turns
from benchmarks.split import shortcomings


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


def test_what_is_promised_is_what_is_checked() -> None:
    kept, links = {"central": 0.96, "vanilla": 0.955, "splitfed-1": 0.96}, [{"codec": "float32", "share": 0.9}]
    assert shortcomings(kept, links) == []
    assert shortcomings({**kept, "splitfed-1": 0.94}, links) == ["splitfed-1 loses accuracy"]
    assert shortcomings(kept, [{"codec": "float16", "share": 0.7}]) == ["float16 is slow"]
