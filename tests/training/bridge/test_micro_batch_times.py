"""What a peer takes its micro-batches to last, whatever else its program does between them."""

from __future__ import annotations

import pytest

from minga.training.bridge.micro_batch_times import LEAST_PAUSE, MicroBatchTimes


def after(*seconds: float) -> MicroBatchTimes:
    """Micro-batches of 4 samples that took so long, one after the other."""
    times, now_s = MicroBatchTimes(), 100.0
    for each_s in seconds:
        now_s += each_s
        times.add(4, each_s, now_s)
    return times


@pytest.mark.parametrize(
    ("seconds", "each_s"),
    [
        ((), 0.0),
        ((2.0,), 2.0),
        ((0.5, 0.5, 60.0), 1.24),  # it evaluated: counts as 2.5 s
        ((60.0, 0.5), 0.5),  # it compiled
        ((1.2, 0.1, 0.1), 0.1),
        ((60.0, 60.0, 0.5), 0.5),  # it compiled twice: the second one had another shape
        ((60.0, 60.0, 60.0, 0.5), 44.0),  # one quick one says little: about the mean of four
        ((0.01, 0.9), 0.478),  # less than a second more may well be its own
        ((0.5, *[60.0] * 40), 59.0),  # it is slower now
        (tuple([0.1, 0.1, 0.1, 4.0] * 50), 1.07),  # data come in bursts
    ],
)
def test_lone_long_times_count_for_little_and_what_lasts_counts_in_full(
    seconds: tuple[float, ...], each_s: float
) -> None:
    times = after(*seconds)
    assert times.each_s == pytest.approx(each_s, rel=0.1)
    assert times.samples_per_s == pytest.approx(4 / each_s if each_s else 0.0, rel=0.1)


def test_further_micro_batches_are_needed_where_the_first_were_long() -> None:
    assert not MicroBatchTimes().needs_another(1e9, 1.0), "it never computed"
    for few in ((60.0,), (60.0, 60.0)):
        first, ended_s = after(*few), 100.0 + sum(few)
        assert not first.needs_another(ended_s + 0.5, 5.0)
        assert first.needs_another(ended_s + 1.0, 5.0)
        assert not first.needs_another(ended_s + 1.0, 61.0), "there is time for such a micro-batch in a step"
    usual = after(60.0, 60.0, 60.0)
    assert not usual.needs_another(1e9, 5.0), "it never was quick enough"


def test_who_was_quick_enough_before_tries_again_ever_more_rarely_and_is_believed_at_once() -> None:
    times = after(*[0.25] * 20, *[4.0] * 12)
    now_s, step_s, tries = 100.0 + 20 * 0.25 + 12 * 4.0, 1.0, list[float]()
    assert times.each_s > step_s
    for _ in range(3):
        begun_s = now_s
        while not times.needs_another(now_s, step_s):
            now_s += 0.5
        tries.append(now_s - begun_s)
        now_s += 4.0
        times.begin_try()
        times.add(4, 4.0, now_s)
    assert tries == pytest.approx([LEAST_PAUSE * times.each_s * factor for factor in (1, 2, 4)], rel=0.2)
    while not times.needs_another(now_s, step_s):
        now_s += 0.5
    times.begin_try()
    times.add(4, 0.25, now_s + 0.25)
    assert times.each_s == pytest.approx(0.25)


def test_a_clock_that_ticks_rarely_leaves_a_time_above_zero() -> None:
    assert after(0.0, 0.0).each_s > 0.0
