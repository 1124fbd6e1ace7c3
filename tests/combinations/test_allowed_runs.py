"""Each allowed pair of minga's own choices trains: two steps of two peers, with real numbers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import pytest

from documentation.combinations import Settings, choices, run_with, spelled, with_company
from minga.combinations import check_combinations, nearest_allowed, refusals, with_changes
from tests.worlds.combined_peers import CombinedPeer, take_step


def pairs() -> Iterator[Settings]:
    """Each value of one setting with each value of another one."""
    for (first, ones), (second, others) in itertools.combinations(choices().items(), 2):
        for one, other in itertools.product(ones, others):
            yield {first: one, second: other}


def words(settings: Settings) -> str:
    """The settings as the id of a test."""
    return ",".join(f"{key.rpartition('.')[2]}={spelled(value)}" for key, value in settings.items())


PAIRS = list(pairs())
ALLOWED = [settings for pair in PAIRS if (settings := with_company(pair)) is not None]
"""Each with what it needs besides, as a dense download codec."""
REFUSED = [pair for pair in PAIRS if refusals(run_with(pair))]


def arithmetic(settings: Settings) -> Settings:
    """The settings that rounds depend on."""
    return {key: value for key, value in settings.items() if key.startswith(("averaging.", "training.strategy"))}


RUNS: defaultdict[str, dict[str, Settings]] = defaultdict(dict)
"""By the first setting of the pair: the settings, by their words."""
for wanted in map(arithmetic, ALLOWED):
    RUNS[words(wanted).partition(",")[0]][words(wanted)] = wanted


@pytest.mark.parametrize("first", RUNS)
def test_each_allowed_pair_takes_two_steps(first: str) -> None:
    for name, settings in RUNS[first].items():
        try:
            take_two_steps(settings)
        except Exception as error:
            raise AssertionError(name) from error


def take_two_steps(settings: Settings) -> None:
    company = with_company(settings)
    assert company is not None
    spec = run_with(company)
    check_combinations(spec)
    peers = [CombinedPeer(spec, number) for number in range(2)]
    before, first = peers[0].replica.digest(), peers[0].loss()
    for _ in range(2):
        take_step(peers)
        assert len({peer.replica.digest() for peer in peers}) == 1
    assert peers[0].replica.step == 2
    assert peers[0].replica.digest() != before
    assert math.isfinite(peers[0].loss())
    if not peers[0].facts.owns_optimizer:  # by the signs of few numbers two steps say nothing
        assert peers[0].loss() < 1.01 * first  # of elements at random two steps say little


def test_refused_pairs_are_refused_with_a_choice_that_is_allowed() -> None:
    assert REFUSED
    for pair in REFUSED:
        changes = nearest_allowed(run_with(pair))
        assert changes, pair
        check_combinations(with_changes(run_with(pair), changes))
