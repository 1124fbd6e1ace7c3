"""When steps are full, by the limits that leaders choose."""

import math

from minga.planner.forecast import PeerPace, fill


def test_whole_micro_batches_are_waited_for() -> None:
    # Four peers of 10 samples/s: 400 samples are 25 micro-batches of 4 each.
    assert fill([PeerPace(4, 4, 0.4)], 400).samples == (400,)
    assert math.isclose(fill([PeerPace(4, 4, 0.4)], 400).seconds, 10.0, abs_tol=1e-6)
    # In micro-batches of 64 the same peers can have 768 or 1,024 samples.
    coarse = fill([PeerPace(4, 64, 6.4)], 1000)
    assert coarse.samples == (1024,)
    assert math.isclose(coarse.seconds, 25.6, abs_tol=1e-6)


def test_who_is_in_the_middle_of_a_long_micro_batch_is_not_waited_for() -> None:
    filled = fill([PeerPace(4, 4, 0.4), PeerPace(1, 64, 60.0)], 400)
    assert filled.samples == (400, 0)
    assert 10.0 <= filled.seconds <= 11.0
    assert fill([PeerPace(4, 4, 0.4), PeerPace(0, 1, 1.0)], 400).seconds <= 10.0 + 1e-6


def test_a_step_that_is_not_full_never_ends() -> None:
    assert fill([PeerPace(0, 1, 1.0)], 10).seconds == math.inf
    assert fill([], 10).seconds == math.inf


def test_one_micro_batch_may_be_the_whole_step() -> None:
    filled = fill([PeerPace(1, 64, 2.0)], 1)
    assert filled.samples == (64,)
    assert math.isclose(filled.seconds, 2.0, abs_tol=1e-6)
