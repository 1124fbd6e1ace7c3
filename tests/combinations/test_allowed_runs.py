"""Each allowed pair of minga's own choices trains: two steps of two peers, with real numbers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache

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


def arithmetic(settings: Settings) -> Settings:
    """The settings that rounds depend on."""
    return {key: value for key, value in settings.items() if key.startswith(("averaging.", "training.strategy"))}


SINGLE = [arithmetic({key: value}) for key, values in choices().items() for value in values]
FIRSTS = list(dict.fromkeys(words(each).partition(",")[0] for each in SINGLE))
"""What may stand first in the words of a run; in those of the usual one nothing does."""


def parts(settings: Settings) -> Iterator[str]:
    """The words of each setting, and of each two of them."""
    for count in range(3):
        yield from (words(dict(some)) for some in itertools.combinations(sorted(settings.items()), count))


@cache
def runs() -> dict[str, dict[str, Settings]]:
    """By the first setting: allowed settings, by their words. Each allowed pair, with what it needs besides, as a dense
    download codec, is part of one of them at least; a run has more than two settings where it tries further pairs by
    these. Not made while tests are collected, which each process does.
    """
    allowed = (arithmetic(settings) for pair in pairs() if (settings := with_company(pair)) is not None)
    left = {words(dict(sorted(wanted.items()))): wanted for wanted in allowed}
    found: defaultdict[str, dict[str, Settings]] = defaultdict(dict)
    while left:
        run = dict(next(iter(left.values())))
        while (further := most_of(left, run)) is not None:
            run = further
        found[words(run).partition(",")[0]][words(run)] = run
        for part in (words(dict(sorted(run.items()))), *parts(run)):
            left.pop(part, None)
    return found


def most_of(left: Collection[str], run: Settings) -> Settings | None:
    """The run with one setting more, by which it tries most of the pairs that are left."""
    best, most = None, 0
    for key, value in ((key, value) for key, values in choices().items() for value in values if key not in run):
        new = [words(dict(sorted([(key, value), each]))) for each in run.items()] if arithmetic({key: value}) else []
        count = sum(pair in left for pair in new)
        if count > most and with_company(more := {**run, key: value}) is not None:
            best, most = more, count
    return best


def test_each_allowed_pair_has_its_place_in_a_test() -> None:
    assert runs()
    assert runs().keys() <= set(FIRSTS)


@pytest.mark.parametrize("first", FIRSTS)
def test_each_allowed_pair_takes_two_steps(first: str) -> None:
    for name, settings in runs().get(first, {}).items():
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
    refused = [pair for pair in pairs() if refusals(run_with(pair))]
    assert refused
    for pair in refused:
        changes = nearest_allowed(run_with(pair))
        assert changes, pair
        check_combinations(with_changes(run_with(pair), changes))
