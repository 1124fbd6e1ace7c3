"""Partitions from the search of `benchmarks.partitions`: no two histories may both go on."""

from __future__ import annotations

import pytest

from benchmarks._partition_play import Partition, play


def test_a_seed_decides_the_partition() -> None:
    assert Partition.drawn(184) == Partition.drawn(184)
    assert Partition.drawn(184) != Partition.drawn(185)


def test_one_half_of_four_goes_on_and_the_other_comes_back() -> None:
    verdict = play(128)
    assert (verdict.forked_at, verdict.stood_still, verdict.errors) == (None, (), [])


@pytest.mark.xfail(
    strict=True,
    reason="known fork: the half without the plan goes by the round before, the other half by the plan",
)
def test_halves_divided_while_the_plan_is_on_its_way_have_one_history() -> None:
    assert play(272).forked_at is None
