from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.clocking import sample_quota
from minga.averaging.clocking.sample_quota import SURPLUS, MemberPace, seconds_as_is, share_out

micro_batches = st.integers(1, 64)
seconds = st.floats(0.01, 100.0)
paces = st.builds(MemberPace, st.integers(0, 500), micro_batches, seconds, seconds)


def samples_at(pace: MemberPace, at_s: float) -> float:
    done = max(0, math.floor((at_s - pace.next_s) / pace.micro_batch_s + 1e-9) + 1)
    return pace.samples + pace.micro_batch * done


def test_faster_members_get_more() -> None:
    found = share_out(100, [MemberPace(0, 10, 1.0, 1.0), MemberPace(0, 5, 2.0, 2.0)])
    assert found.samples == (80, 20)
    assert found.seconds == pytest.approx(8.0)


def test_the_time_is_that_at_which_the_last_micro_batch_ends_to_the_last_bit() -> None:
    """Halvings alone came close to it; they end now where one micro-batch decides."""
    found = share_out(12, [MemberPace(0, 1, 0.25, 0.125), MemberPace(0, 4, 0.5, 0.75)])
    assert found.samples == (8, 4)
    assert found.seconds == 1.125


def test_who_finishes_nothing_in_time_is_left_out() -> None:
    found = share_out(100, [MemberPace(0, 10, 1.0, 1.0), MemberPace(0, 10, 20.0, 20.0)])
    assert found.samples == (100, 0)
    assert found.seconds == pytest.approx(10.0)


def test_micro_batches_beyond_the_target_are_left_out_but_not_anybodys_only_one() -> None:
    two = [MemberPace(0, 8, 1.0, 1.0), MemberPace(0, 8, 1.0, 1.0)]
    assert sorted(share_out(40, two).samples) == [16, 24]
    many = [MemberPace(0, 4, 1.0, 1.0)] * 16
    assert share_out(60, many).samples == (4,) * 16
    assert sum(share_out(52, many).samples) == 56


def test_what_is_there_already_is_enough_or_nobody_goes_on() -> None:
    assert share_out(10, [MemberPace(12, 4, 1.0, 1.0)]).samples == (12,)
    assert share_out(10, [MemberPace(12, 4, 1.0, 1.0)]).seconds == 0.0
    assert share_out(10, [MemberPace(3), MemberPace(4)]).samples == (3, 4)
    assert share_out(10, [MemberPace(3), MemberPace(4)]).seconds == math.inf


def test_limits_that_do_not_reach_the_target_never_fill_it() -> None:
    assert seconds_as_is(100, [MemberPace(0, 10, 1.0, 1.0, 50), MemberPace(0, 10, 1.0, 1.0, 40)]) == math.inf
    assert seconds_as_is(100, [MemberPace(0, 10, 1.0, 1.0, 50), MemberPace(0, 10, 1.0, 2.0, 50)]) == pytest.approx(9.0)
    assert seconds_as_is(100, [MemberPace(0, 10, 1.0, 1.0, None)]) == pytest.approx(10.0)


@given(st.integers(1, 10_000), st.lists(paces, min_size=1, max_size=20))
def test_the_limits_are_reached_in_time_and_make_about_the_target(target: int, members: list[MemberPace]) -> None:
    found = share_out(target, members)
    assert seconds_as_is(target, members) == found.seconds  # they have no limits, so nothing can be sooner
    total, had = sum(found.samples), sum(pace.samples for pace in members)
    assert total >= target
    for pace, limit in zip(members, found.samples, strict=True):
        assert pace.samples <= limit <= samples_at(pace, found.seconds * (1 + 1e-9))
        spare = limit - pace.samples >= pace.micro_batch
        if spare and had < target:  # no micro-batch is asked for in vain, but for only ones within the surplus
            assert total - pace.micro_batch < target or (total <= (1 + SURPLUS) * target and limit == pace.micro_batch)


def test_what_is_overdue_takes_no_time_more() -> None:
    """A busy machine is late with its micro-batches. With a negative wait other limits seemed a gain at each look."""
    late = [MemberPace(samples=0, micro_batch=1, micro_batch_s=1.0, next_s=next_s, limit=4) for next_s in (-9.5, -3.2)]
    assert share_out(5, late).seconds == 0.0
    assert seconds_as_is(5, late) == 0.0
    assert share_out(5, late[:1]).samples == (5,)


HONEST = [MemberPace(0, 1 << 17, 10.0 + i / 10, 10.0) for i in range(8)]


@pytest.mark.parametrize(
    ("target", "members", "seconds"),
    [
        (1 << 20, [*HONEST, MemberPace(0, 1, 5.0, 1e-300)], 6.048575),
        (1 << 20, [MemberPace(0, 4, 1.0, 1.0), MemberPace(0, 4, 1.5, 1.0), MemberPace(0, 1 << 24, 1e9, 1e9)], 131072.5),
        (300, [MemberPace(0, 1, 1e5, 1e-6)], 1e5),
    ],
    ids=["one of them", "before a long one", "all at the same moment"],
)
def test_short_micro_batches_are_not_counted_one_by_one(
    target: int, members: list[MemberPace], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a microsecond, or those that fit into the one that another member claims to compute: counting them took
    the leader seconds for each look, and had no end where each came at the same moment as the one before.
    """
    taken, real = 0, sample_quota._last_s

    def count(*arguments: Any) -> float:
        nonlocal taken
        taken += 1
        assert taken < 1000, "micro-batches are taken one by one"
        return real(*arguments)

    monkeypatch.setattr(sample_quota, "_last_s", count)
    found = share_out(target, members)
    assert sum(found.samples) >= target
    assert found.seconds == pytest.approx(seconds)
