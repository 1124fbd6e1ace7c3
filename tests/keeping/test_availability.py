"""When a volunteer's machine takes part: hours, traffic, battery, a word from its owner."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.identity.keys.key_file import FileLock
from minga.keeping.availability import (
    ADVANCE,
    PAUSE_FILE,
    TRAFFIC_FILE,
    Availability,
    AvailabilityRules,
    DailyHours,
    TrafficBudget,
    TrafficLimit,
    is_in_use,
    listeners,
    listening,
    set_paused,
    using,
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


def test_a_clock_that_was_ahead_once_keeps_no_machine_from_taking_part(tmp_path: Path) -> None:
    limit, path = TrafficLimit.parse("60GB/month"), tmp_path / TRAFFIC_FILE
    ahead = TrafficBudget(limit, path, at("2026-06-25T12:00"))
    ahead.note(1e8, at("2026-06-25T12:01"))
    ahead.keep()
    right = TrafficBudget(limit, path, at("2026-06-05T12:00"))
    right.begin_session()
    right.note(3e9, at("2026-06-05T13:00"))
    assert right.wait_s(at("2026-06-05T13:00"), is_paused=True) < 2.5 * 86400.0  # a twentieth of 25 days, and more


def test_a_disk_that_refuses_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, begun = tmp_path / "full" / TRAFFIC_FILE, at("2026-06-03T12:00")
    (tmp_path / "full").touch()
    budget = TrafficBudget(TrafficLimit.parse("10GB/week"), path, begun)
    for seconds in range(0, 60, 20):
        budget.note(5.0, begun + seconds)
    assert caplog.text.count("is not kept") == 1
    (tmp_path / "full").unlink()
    budget.note(5.0, begun + 60)
    (tmp_path / "full" / TRAFFIC_FILE).unlink()
    (tmp_path / "full").rmdir()
    (tmp_path / "full").touch()
    budget.note(5.0, begun + 80)
    assert caplog.text.count("is not kept") == 2


def test_what_was_used_outlives_the_process_and_a_clock_that_goes_wrong(tmp_path: Path) -> None:
    limit, begun = TrafficLimit.parse("10GB/week"), at("2026-06-03T12:00")
    path = tmp_path / TRAFFIC_FILE
    first = TrafficBudget(limit, path, begun)
    first.note(1e9, begun)
    first.keep()
    again = TrafficBudget(limit, path, begun + 60)
    again.begin_session()
    again.note(1e8, begun + 60)
    again.note(1e8, begun + 61)
    assert again.used_bytes == pytest.approx(1.1e9)
    assert "used this week" in again.text
    for wrong in (at("2000-01-01T00:00"), at("2030-06-03T12:00")):
        again.note(2e8, wrong)
        again.keep()
        assert TrafficBudget(limit, path, begun + 62).used_bytes == pytest.approx(1.1e9)
    assert TrafficBudget(TrafficLimit.parse("10GB/day"), path, begun).used_bytes == 0.0
    good = b'{"period":"week","now":{"ends":"2026-06-08","since":1.0,"used_bytes":1.0}}'
    path.write_bytes(good)
    assert TrafficBudget(limit, path, begun).used_bytes == 1.0
    for old, new in ((good, b""), (b"1.0", b"1e400"), (b":1.0}", b":-1.0}"), (b"08", b"8"), (b"{", b"[" * 9999)):
        path.write_bytes(good.replace(old, new))
        assert TrafficBudget(limit, path, begun).used_bytes == 0.0
    full = TrafficBudget(limit, path / "below-a-file", begun)
    full.note(5.0, begun + 60)
    assert full.used_bytes == 5.0, "a disk that refuses does not stop training"


@pytest.mark.parametrize("zone", ["Europe/London", "Asia/Tokyo"])
def test_what_was_used_counts_in_other_time_zones_too(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, begun = TrafficLimit.parse("50GB/month"), at("2026-06-16T12:00")
    first = TrafficBudget(limit, tmp_path / "traffic", begun)
    first.note(50e9, begun)
    first.keep()
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    there = TrafficBudget(limit, tmp_path / "traffic", begun + HOUR_S)
    assert there.used_bytes == first.used_bytes
    assert there.wait_s(begun + HOUR_S, is_paused=False) == at("2026-07-01T00:00") - begun - HOUR_S
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    assert first.wait_s(begun + HOUR_S, is_paused=False) == at("2026-07-01T00:00") - begun - HOUR_S, "and home again"


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


IN_ANOTHER_CONTAINER = """
import os, pathlib, sys
os.getpid = lambda: int(sys.argv[2])
from minga.keeping.availability import listeners, listening
with listening(pathlib.Path(sys.argv[1])):
    print(listeners(pathlib.Path(sys.argv[1])))
"""


def test_processes_of_containers_that_share_a_disk_are_told_apart(tmp_path: Path) -> None:
    """In each of them the first process has the number 1."""
    with listening(tmp_path):
        assert listeners(tmp_path) == 0, "itself is no other"
        command = [sys.executable, "-c", IN_ANOTHER_CONTAINER, str(tmp_path), str(os.getpid())]
        assert subprocess.check_output(command).split() == [b"1"]
        assert len([*tmp_path.iterdir()]) == 1, "the other one took nothing with it"
    assert not [*tmp_path.iterdir()]


def test_the_file_of_a_killed_process_goes_also_where_no_open_file_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    unlink, left = Path.unlink, tmp_path / "joined-1"

    def unlink_if_closed(path: Path, missing_ok: bool = False) -> None:
        if (lock := FileLock.try_acquire(path)) is None:
            raise PermissionError(13, "used by another process")
        lock.release()
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_if_closed)
    left.touch()
    assert listeners(tmp_path) == 0
    assert not left.exists()


def test_a_look_between_making_and_locking_a_file_leaves_no_peer_unprotected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, looks = FileLock.try_acquire, [False]

    def looked_at_before(path: Path) -> FileLock | None:
        if looks:
            looks.pop()
            assert not is_in_use(tmp_path)
        return acquire(path)

    monkeypatch.setattr(FileLock, "try_acquire", looked_at_before)
    with using(tmp_path):
        assert is_in_use(tmp_path)
    assert not list(tmp_path.iterdir())
