"""When a volunteer's machine takes part: hours, traffic, battery, a word from its owner."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.identity.keys.key_file import FileLock
from minga.keeping import availability
from minga.keeping.availability import (
    ADVANCE,
    PAUSE_FILE,
    TRAFFIC_FILE,
    Availability,
    AvailabilityRules,
    DailyHours,
    Pause,
    TrafficBudget,
    TrafficLimit,
    set_paused,
)
from tests.worlds.seeds import soaked

HOUR_S, DAY_S = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which clocks change: to summer time on 2026-03-29, back on 2026-10-25."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    """The Unix time of a local date and time."""
    return dt.datetime.fromisoformat(text).astimezone().timestamp()


@pytest.mark.parametrize(
    ("text", "now", "hours"),
    [
        ("22:00-07:00", "2026-06-01T21:00", 1.0),
        ("22:00-07:00", "2026-06-01T22:00", 0.0),
        ("22:00-07:00", "2026-06-01T06:59", 0.0),
        ("22:00-07:00", "2026-06-01T07:00", 15.0),
        ("22:00-24:00", "2026-06-01T00:00", 22.0),
        ("12:00-13:00, 18:00-19:00", "2026-06-01T13:30", 4.5),
        ("02:00-04:00", "2026-03-28T23:00", 3.0),  # the hour from 2 to 3 is left out that night
        ("04:00-05:00", "2026-10-24T23:00", 6.0),  # and comes twice in this one
    ],
)
def test_hours_of_the_day(text: str, now: str, hours: float) -> None:
    assert DailyHours.parse(text).wait_s(at(now)) == pytest.approx(hours * HOUR_S)


@pytest.mark.parametrize(
    "text", ["", "22-7", "25:00-26:00", "22:00-22:00", "0:60-1:00", "22:00", "00:00-24:00", "x" * 999]
)
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--only"):
        DailyHours.parse(text)


@pytest.mark.parametrize(
    ("text", "now", "begin", "end"),
    [
        ("1GB/day", "2026-10-25T12:00", "2026-10-25T00:00", "2026-10-26T00:00"),  # a day of 25 hours
        ("1GB/week", "2026-06-03T12:00", "2026-06-01T00:00", "2026-06-08T00:00"),
        ("1GB/month", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_periods_are_those_of_the_calendar(text: str, now: str, begin: str, end: str) -> None:
    assert TrafficLimit.parse(text).bounds(at(now)) == (at(begin), at(end))


@pytest.mark.parametrize("zone", ["Atlantic/Azores", "Africa/Cairo", "America/Santiago", "America/Havana"])
def test_a_period_ends_when_the_next_one_begins_though_there_is_no_midnight(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    limit, now = TrafficLimit.parse("1GB/day"), at("2026-01-01T12:00")
    for _ in range(365):
        end = limit.bounds(now)[1]
        assert limit.bounds(end - 1.0)[1] == end == limit.bounds(end)[0], "no hour belongs to both days, or to none"
        now = end + DAY_S / 2


@pytest.mark.parametrize("text", ["50GB", "50GB/year", "/month", "50/month", "-1GB/day"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--max-traffic"):
        TrafficLimit.parse(text)


def test_a_budget_is_spread_over_the_time_left(tmp_path: Path) -> None:
    limit, begun = TrafficLimit.parse("30GB/month"), at("2026-06-16T00:00")  # half of the month is over
    budget = TrafficBudget(limit, tmp_path / "traffic", begun)
    budget.begin_session()
    advance = 30e9 * ADVANCE
    budget.note(0.9 * advance, begun)
    assert budget.wait_s(begun, is_paused=False) == 0.0
    budget.note(1.1 * advance, begun)
    wait_s = budget.wait_s(begun, is_paused=True)
    assert wait_s == pytest.approx(15 * DAY_S * 1.1 * ADVANCE, rel=0.01)
    assert budget.wait_s(begun + wait_s + 60, is_paused=True) == 0.0, "then it may go on, and has its advance again"
    assert budget.wait_s(begun + wait_s + 60, is_paused=False) == 0.0
    budget.note(30e9, begun + 14 * DAY_S)
    assert budget.wait_s(begun + 14 * DAY_S, is_paused=False) == pytest.approx(DAY_S), "used up, until the month ends"
    assert budget.wait_s(at("2026-07-01T00:00"), is_paused=True) == pytest.approx(1.0, abs=DAY_S * 31 * ADVANCE)
    assert budget.used_bytes == 0.0


def spend_a_day(limit: TrafficLimit, start_bytes: float, step_bytes: float, path: Path) -> tuple[float, int]:
    """What a machine uses in a day, which looks once a second and whose steps take a second, and how many it takes."""
    now, steps = at("2026-06-10T00:00"), 0
    budget = TrafficBudget(limit, path, now)
    budget.start_bytes = start_bytes
    is_paused = False
    while now < at("2026-06-11T00:00") - 1.0:
        if (wait_s := budget.wait_s(now, is_paused=is_paused)) > 0.0:
            now, is_paused = now + wait_s, True
            continue
        budget.begin_session()
        total = start_bytes
        while now < at("2026-06-11T00:00") - 1.0:
            budget.note(total, now)
            if budget.wait_s(now, is_paused=False) > 0.0:
                break
            now, total, steps = now + 1.0, total + step_bytes, steps + 1
        budget.end_session()
        is_paused = True
    return budget.used_bytes, steps


@pytest.mark.parametrize("times", [2, 3, 29, 31, 100, *map(soaked, (10, 1000))])
def test_at_most_is_at_most_and_steps_follow_each_start(times: int, tmp_path: Path) -> None:
    start, step = 16e6, 5e5
    limit = TrafficLimit(times * start, "day")
    assert limit.least_for(start) is None
    used, steps = spend_a_day(limit, start, step, tmp_path / "traffic")
    assert used <= limit.limit_bytes
    assert steps * step >= 0.3 * limit.limit_bytes, "starts do not take most of it"


def test_the_smallest_budget_that_makes_sense() -> None:
    assert TrafficLimit.parse("10MB/day").least_for(16.4e6) == "50MB/day"
    assert TrafficLimit.parse("50MB/day").least_for(16.4e6) is None
    assert TrafficLimit.parse("1GB/month").least_for(9.9e8) == "2GB/month"


def test_what_was_used_counts_again_once_a_wrong_clock_is_right(tmp_path: Path) -> None:
    """A machine without a battery for its clock boots in 2000, until a time server answers; another jumps ahead."""
    limit, now = TrafficLimit.parse("50GB/month"), at("2026-11-20T12:00")
    for wrong in (at("2000-01-01T00:00"), now + 40 * DAY_S):
        path = tmp_path / f"{wrong:.0f}"
        first = TrafficBudget(limit, path, now - 15 * DAY_S)
        first.begin_session()
        first.note(24e9, now)
        first.end_session()
        for day in range(3):
            booted = TrafficBudget(limit, path, wrong + day * DAY_S)
            booted.begin_session()
            booted.note(1e6, wrong + day * DAY_S + 20.0)
            booted.note(2e6, now + day * DAY_S + 60.0)
            assert booted.used_bytes == pytest.approx(24e9 + (day + 1) * 2e6, abs=2e6), "also what came meanwhile"
            booted.end_session()
    assert booted.wait_s(at("2026-12-01T00:00"), is_paused=False) == 0.0, "a new month begins anew"


def test_what_was_used_outlives_the_process_and_a_clock_that_goes_wrong(tmp_path: Path) -> None:
    limit, begun = TrafficLimit.parse("10GB/week"), at("2026-06-03T12:00")
    first = TrafficBudget(limit, tmp_path / "traffic", begun)
    first.note(1e9, begun)
    first.keep()
    again = TrafficBudget(limit, tmp_path / "traffic", begun + 60)
    again.begin_session()
    again.note(1e8, begun + 60)
    again.note(1e8, begun + 61)
    assert again.used_bytes == pytest.approx(1.1e9)
    assert "used this week" in again.text
    again.note(2e8, begun - 30 * DAY_S)
    assert again.used_bytes == pytest.approx(1.2e9), "a clock that goes back forgets nothing"
    again.keep()
    future = TrafficBudget(limit, tmp_path / "future", at("2030-06-03T12:00"))
    future.note(5e9, at("2030-06-03T12:00"))
    future.keep()
    corrected = TrafficBudget(limit, tmp_path / "future", begun)
    assert corrected.used_bytes == pytest.approx(5e9)
    assert corrected.wait_s(begun, is_paused=True) < 7 * DAY_S, "a clock that was wrong once"
    one, other = (TrafficBudget(limit, tmp_path / "shared", begun) for _ in range(2))
    for budget in (one, other, one):
        budget.note(budget.used_bytes + 1e9, begun)
        budget.keep()
    assert TrafficBudget(limit, tmp_path / "shared", begun).used_bytes >= 3e9, "two peers of one machine"
    assert TrafficBudget(TrafficLimit.parse("10GB/day"), tmp_path / "traffic", begun).used_bytes == 0.0
    for garbage in (b"", b"{}", b'{"ends": 1e400, "since": 0}', b'{"ends": 5, "since": 9}', b"[" * 9999):
        (tmp_path / "traffic").write_bytes(garbage)
        assert TrafficBudget(limit, tmp_path / "traffic", begun).used_bytes == 0.0
    full = TrafficBudget(limit, tmp_path / "traffic" / "below-a-file", begun)
    full.note(5.0, begun + 60)
    assert full.used_bytes == 5.0, "a disk that refuses does not stop training"


def test_all_rules_together(tmp_path: Path) -> None:
    clock, unplugged = [at("2026-06-01T12:00")], [False]
    rules = AvailabilityRules(DailyHours.parse("22:00-07:00"), TrafficLimit.parse("1GB/day"), pause_on_battery=True)
    found = Availability(rules, tmp_path, lambda: clock[0], lambda: unplugged[0])
    pause = found.pause()
    assert pause is not None
    assert pause == ("hours", "outside of the hours of --only", pytest.approx(10 * HOUR_S))
    clock[0] += 10 * HOUR_S
    assert found.pause() is None
    unplugged[0] = True
    assert found.pause() == ("battery", "on battery", None)
    unplugged[0] = False
    assert set_paused(tmp_path, paused=True)
    assert not set_paused(tmp_path, paused=True), "it was paused already"
    pause = found.pause()
    assert pause is not None
    assert "--unpause" in pause.why
    set_paused(tmp_path, paused=False)
    found.begin_session()
    found.note_traffic(2e9)
    pause = found.pause()
    assert pause is not None
    assert "used this day" in pause.why
    assert pause.seconds == pytest.approx(2 * HOUR_S)
    found.end_session()
    assert (tmp_path / TRAFFIC_FILE).exists()
    assert not (tmp_path / PAUSE_FILE).exists()
    assert Availability(AvailabilityRules(), tmp_path, lambda: clock[0]).pause() is None


def test_a_pause_by_its_owner_is_not_prolonged_for_traffic(tmp_path: Path) -> None:
    """The advance is there to be used: only a machine that rests for its traffic waits until there is none."""
    now = at("2026-06-10T12:00")
    found = Availability(AvailabilityRules(traffic=TrafficLimit.parse("30GB/month")), tmp_path, lambda: now)
    found.begin_session()
    found.note_traffic(5e8)
    set_paused(tmp_path, paused=True)
    assert found.pause() is not None
    set_paused(tmp_path, paused=False)
    assert found.pause() is None
    found.note_traffic(2e9)
    assert found.pause() is not None
    found.begin_session()
    found.note_traffic(0)
    assert found.pause() is not None


def test_of_two_that_share_a_budget_one_starts_and_the_other_sees_what_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both waited for the same moment, and the two states that they fetched then took all that there was."""
    now, start = [at("2026-06-01T00:00")], 4e8
    pids, both = (111, 222), list[Availability]()
    rules = AvailabilityRules(traffic=TrafficLimit.parse("10GB/month"))
    for pid in pids:
        (tmp_path / f"joined-{pid}").touch()
        both.append(Availability(rules, tmp_path, lambda: now[0]))
        both[-1].expect_start(start / 10)
    with contextlib.ExitStack() as held:
        for pid in pids:
            lock = FileLock.try_acquire(tmp_path / f"joined-{pid}")
            assert lock is not None
            held.callback(lock.release)

        def may_start() -> list[bool]:
            return [_asks(monkeypatch, pid, each) is None for pid, each in zip(pids, both, strict=True)]

        now[0] += 1.0
        assert may_start() == [True, True], "the advance is enough for starts of both"
        for each in both:
            each.expect_start(start)
        assert may_start() == [True, False], "it is for one start, and the steps that follow"
        both[0].begin_session()
        both[0].note_traffic(start)
        both[0].end_session()
        assert may_start() == [True, False], "what is left of it is for steps"
        both[0].begin_session()
        both[0].note_traffic(5e8)
        both[0].end_session()
        assert may_start() == [False, False]
        now[0] += 2.8 * DAY_S  # time for 9e8 bytes
        assert may_start() == [True, False]
        now[0] += 3.6 * DAY_S  # and for three starts: two are left to the first one, which makes none
        assert may_start() == [True, True]
        both[0].begin_session()
        both[0].note_traffic(9e9)
        both[0].end_session()
        assert may_start() == [False, False]
        assert both[1].traffic == "9.9 GB of 10 GB used this month"


def test_a_peer_that_trains_does_not_look_for_others_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look tries their locks, and may be in the way of one that begins."""
    looks: list[Path] = []

    def look(directory: Path) -> int:
        looks.append(directory)
        return 0

    monkeypatch.setattr(availability, "ahead", look)
    rules = AvailabilityRules(traffic=TrafficLimit.parse("10GB/month"))
    found = Availability(rules, tmp_path, lambda: at("2026-06-01T00:00"))
    assert found.pause() is None
    found.begin_session()
    assert found.pause() is None
    assert looks == [tmp_path], "before the start only"
    found.end_session()
    found.pause()
    assert looks == [tmp_path] * 2


def _asks(monkeypatch: pytest.MonkeyPatch, pid: int, found: Availability) -> Pause | None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid)
        return found.pause()
