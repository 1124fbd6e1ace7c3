"""What a peer takes its micro-batches to last, whatever else its program does between them."""

from __future__ import annotations

import pytest

from minga.training.bridge.micro_batch_times import TRY_AGAIN, MicroBatchTimes


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
        ((0.5, 0.5, 60.0), 0.5),  # it evaluated
        ((0.5, 0.5, 60.0, 0.5, 60.0, 0.5), 0.5),
        ((0.5, 0.5, 60.0, 60.0), 60.0),  # it is slower now
        ((60.0, 0.5), 0.5),  # it compiled
        ((60.0, 60.0, 0.5), 40.0),  # one quick one says little: an average of three
        ((0.01, 0.9), 0.478),  # less than a second more may well be its own
    ],
)
def test_what_takes_far_longer_than_usual_is_no_micro_batch_unless_the_next_is_as_long(
    seconds: tuple[float, ...], each_s: float
) -> None:
    times = after(*seconds)
    assert times.each_s == pytest.approx(each_s, rel=0.07)
    assert times.samples_per_s == pytest.approx(4 / each_s if each_s else 0.0, rel=0.07)


def test_it_is_time_to_try_soon_after_a_first_one_and_rarely_else() -> None:
    assert not MicroBatchTimes().is_time_to_try(1e9), "it never computed"
    first, usual = after(60.0), after(60.0, 60.0)
    assert not first.is_time_to_try(160.5)
    assert first.is_time_to_try(161.0)
    assert not usual.is_time_to_try(220.0 + 60.0 * TRY_AGAIN - 1.0)
    assert usual.is_time_to_try(220.0 + 60.0 * TRY_AGAIN)
    assert after(0.5, 0.5, 60.0, 60.0).is_time_to_try(222.1), "a first one at its new speed"
