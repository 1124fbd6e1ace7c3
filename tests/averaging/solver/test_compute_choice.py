"""Who computes gradients: the bound against the published programme, and the choice against every one there is."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from minga.averaging.planning.contributor_choice import StepWork, combined, resting, step_seconds, with_resting
from minga.averaging.solver.division import SwarmRates
from tests.worlds.planner_swarms import GBIT, VECTOR, auxiliary, peer, random_swarm
from tests.worlds.seeds import soaked


def exhaustive(rates: SwarmRates, work: StepWork) -> float:
    """The shortest step of all 2^n - 1 choices, each by the division that would be executed."""
    senders = [index for index, one in enumerate(rates.peers) if one.sends]
    choices = [rests for count in range(len(senders)) for rests in itertools.combinations(senders, count)]
    return min(step_seconds(with_resting(rates, rests), work) for rests in choices)


@pytest.mark.parametrize("overlapped", [soaked(False), True])
def test_the_choice_is_nearly_the_best_of_all(overlapped: bool) -> None:
    generator = random.Random(22)
    rested = 0
    for trial in range(16):
        rates = random_swarm(generator, 3 + trial % 4)
        work = StepWork(0.286 * GBIT, 40.0 * len(rates.peers) * generator.uniform(0.1, 3.0), overlapped)
        rests = resting(rates, work)
        rested += bool(rests)
        shortest_s = exhaustive(rates, work)
        assert step_seconds(with_resting(rates, rests), work) <= shortest_s * (1.03 if rests else 1.06)
    assert rested >= 5


def slow_uploaders(count: int, slow: int) -> SwarmRates:
    """`slow` of the peers compute a little and hardly upload."""
    fast = (peer(1.0, samples_per_second=20.0),) * (count - slow)
    return SwarmRates((*fast, *(peer(0.002, 0.1, samples_per_second=1.0),) * slow))


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(("count", "slow"), [(6, 1), (6, 2), (40, 5)])
def test_those_whose_upload_slows_everybody_rest(count: int, slow: int, overlapped: bool) -> None:
    rates = slow_uploaders(count, slow)
    work = StepWork(0.286 * GBIT, 1000.0, overlapped)
    rests = resting(rates, work)
    assert rests == tuple(range(count - slow, count))
    assert step_seconds(with_resting(rates, rests), work) < step_seconds(rates, work) / 1.5
    assert all(one.receives and one.aggregates for one in with_resting(rates, rests).peers)


def test_nobody_rests_for_nothing() -> None:
    alike = SwarmRates((peer(0.1, samples_per_second=10.0),) * 6)
    for work in (
        StepWork(0.286 * GBIT, 4096.0),
        StepWork(0.286 * GBIT, 4096.0, overlapped=True),
        StepWork(0.0, 4096.0),
    ):
        assert resting(alike, work) == ()
    assert resting(SwarmRates((peer(0.1),) * 6), StepWork(VECTOR, 10.0)) == ()
    assert resting(SwarmRates((peer(0.1, aggregates=False, samples_per_second=1.0),) * 3), StepWork(VECTOR, 10.0)) == ()
    # A slow upload does not matter when the batch takes longer.
    assert resting(slow_uploaders(6, 2), StepWork(0.001 * GBIT, 1e6)) == ()


def test_peers_that_tell_no_speed_are_left_alone() -> None:
    rates = SwarmRates((*slow_uploaders(6, 1).peers, peer(1.0), auxiliary(1.0, receives=True)))
    assert resting(rates, StepWork(0.286 * GBIT, 1000.0)) == (5,)


def test_steps() -> None:
    assert combined(StepWork(1.0, 100.0), 10.0, 4.0) == pytest.approx(14.0)
    assert combined(StepWork(1.0, 100.0, overlapped=True), 10.0, 4.0) == pytest.approx(10.0)
    assert combined(StepWork(1.0, 100.0), 0.0, 4.0) == math.inf
