"""The smallest batch that keeps communication below a share of the time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.clocking.batch_size import idle_share, smallest_batch

RANGE = (1, 2**24)


def test_known_answers() -> None:
    # 160 samples/s and 5 s of communication: half of the time at 800 samples, a tenth at 7,200.
    assert smallest_batch(160.0, 5.0, 0.5, RANGE, overlapped=False) == 800
    assert smallest_batch(160.0, 5.0, 0.1, RANGE, overlapped=False) == 7200
    assert smallest_batch(160.0, 5.0, 0.1, RANGE, overlapped=True) == 720


def test_the_run_bounds_the_answer() -> None:
    assert smallest_batch(160.0, 5.0, 0.1, (64, 4096), overlapped=False) == 4096
    assert smallest_batch(160.0, 0.001, 0.1, (64, 4096), overlapped=False) == 64
    assert smallest_batch(160.0, math.inf, 0.1, (64, 4096), overlapped=True) == 4096
    assert smallest_batch(0.0, 5.0, 0.1, (64, 4096), overlapped=False) == 64


def test_a_step_that_nobody_computes_is_idle() -> None:
    assert idle_share(4096, 0.0, 5.0, overlapped=False) == 1.0
    assert idle_share(4096, 10.0, math.inf, overlapped=True) == 1.0
    assert idle_share(4096, 10.0, 5.0, overlapped=True) == 0.0
    assert idle_share(4096, 10.0, 0.0, overlapped=False) == 0.0


@given(
    speed=st.floats(1e-2, 1e5),
    communication_s=st.floats(0.0, 1e4),
    share=st.floats(0.01, 0.99),
    overlapped=st.booleans(),
)
def test_it_is_enough_and_the_smallest(speed: float, communication_s: float, share: float, overlapped: bool) -> None:
    batch = smallest_batch(speed, communication_s, share, RANGE, overlapped=overlapped)
    if batch < RANGE[1]:
        assert idle_share(batch, speed, communication_s, overlapped=overlapped) <= share + 1e-9
    if batch > RANGE[0]:
        assert idle_share(batch - 1, speed, communication_s, overlapped=overlapped) > share - 1e-9


@pytest.mark.parametrize(
    ("speed", "communication_s", "share", "allowed"),
    [
        (1.0, 1.0, 0.0, (1, 2)),
        (1.0, 1.0, 1.0, (1, 2)),
        (1.0, 1.0, math.nan, (1, 2)),
        (-1.0, 1.0, 0.5, (1, 2)),
        (1.0, math.nan, 0.5, (1, 2)),
        (1.0, 1.0, 0.5, (0, 2)),
        (1.0, 1.0, 0.5, (3, 2)),
    ],
)
def test_bad_values_are_refused(speed: float, communication_s: float, share: float, allowed: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"must|no batch"):
        smallest_batch(speed, communication_s, share, allowed, overlapped=False)
