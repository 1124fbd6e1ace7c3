"""Peers that come late, load slowly, die and come back: the run keeps the organiser's weights, and one history."""

from __future__ import annotations

import pytest

from benchmarks._lineage_play import Story, play_story
from tests.worlds.seeds import soaked

FOREIGN_BEFORE = (3, 4, *map(soaked, (6, 7, 8, 10, 12)))
"""Seeds in which a peer trained with weights of its own before runs had a founding."""


def test_a_seed_decides_the_story() -> None:
    assert Story.drawn(6) == Story.drawn(6)
    assert Story.drawn(6) != Story.drawn(7)


@pytest.mark.parametrize("seed", FOREIGN_BEFORE)
def test_the_weights_are_the_organisers_and_all_end_in_one_history(seed: int) -> None:
    ending = play_story(seed)
    assert (ending.foreign, ending.apart, ending.idle, ending.errors) == ((), (), (), [])
