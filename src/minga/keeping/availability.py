"""When a volunteer's machine takes part: hours of the day, a budget of traffic, the battery, a word from its owner.

    hours of the day ───┐
    budget of traffic ──┼─▶ Availability.pause() ─▶ a command leaves the run, waits, and comes back
    battery ────────────┤
    file `paused` ──────┘

The budget limits the bytes of a day, week or month, and spreads them over the time left. `minga join --pause` in
another terminal writes the file. To pause is to leave: other peers lose nothing, and the peer comes back as one that
was away.

Called by cli/taking_part and training/join. The module knows clocks and files, and nothing of peers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
import psutil

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import keep, read_kept
from minga.core.units import format_size, parse_size
from minga.identity.keys.key_file import FileLock

# ---- Hours of the local day in which a machine takes part, such as "22:00-07:00"; commas separate several.


MAX_HOURS = 24
_DAY_MIN = 24 * 60
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


@dataclass(frozen=True)
class DailyHours:
    """Pairs of minutes of the local day, from the first up to the second; a pair may pass midnight."""

    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str) -> DailyHours:
        """The hours that a text describes. Raises `ConfigurationError`."""
        entries = [entry.strip() for entry in text[:1000].split(",")]
        if len(entries) > MAX_HOURS:
            raise ConfigurationError(f"--only: {len(entries)} entries, {MAX_HOURS} at most")
        return cls(tuple(map(_pair, entries)))

    def holds(self, wall_time: float) -> bool:
        """Whether this Unix time lies within the hours, by this machine's time zone."""
        local = time.localtime(wall_time)
        minute = local.tm_hour * 60 + local.tm_min
        return any(
            begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in self.pairs
        )

    def wait_s(self, wall_time: float) -> float:
        """Seconds until the hours begin, 0 within them.

        Found minute by minute, because a day with a change of the clocks has more or fewer of them.
        """
        at = wall_time
        for _ in range(2 * _DAY_MIN):
            if self.holds(at):
                return max(0.0, at - wall_time)
            at = (at // 60 + 1) * 60
        return 0.0  # hours that a change of the clocks leaves out on both days


def _pair(entry: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(entry)
    if match is None:
        raise ConfigurationError(f"--only {entry[:60]!r}: write hours of the day such as 22:00-07:00")
    begin, end = (int(match[i]) * 60 + int(match[i + 1]) for i in (1, 3))
    if int(match[2]) >= 60 or int(match[4]) >= 60 or max(begin, end) > _DAY_MIN or begin % _DAY_MIN == end % _DAY_MIN:
        raise ConfigurationError(f"--only {entry!r}: no such hours; write 00:00 to 24:00, with another end than begin")
    return begin % _DAY_MIN, end


# ---- A word from another terminal: the file `paused` in a run's folder keeps this machine's peers out of the run.
#
# Each process that goes by it has a file there, too, which it keeps locked: so the others know whether there is one.
# Its name says nothing: in containers that share a disk all processes may have the same number. Each peer has another
# such file, since those of programs go by no pause; its name begins with a dot, which backups leave out.


PAUSE_FILE = "paused"
_LISTENER, _PEER = "joined-", ".peer-"
_own_names: set[str] = set()


def is_paused(directory: Path) -> bool:
    """Whether the owner of this machine paused the run whose folder this is."""
    return (directory / PAUSE_FILE).exists()


def set_paused(directory: Path, *, paused: bool) -> bool:
    """Pause or resume; whether that changed anything. Raises `StorageError` if the disk refuses."""
    was_paused = is_paused(directory)
    try:
        if paused:
            (directory / PAUSE_FILE).touch()
        else:
            (directory / PAUSE_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{directory / PAUSE_FILE} cannot be changed: {reason_of(error)}") from error
    return was_paused != paused


@contextlib.contextmanager
def listening(directory: Path) -> Iterator[None]:
    """Count among the `listeners` of a run meanwhile, if its folder can be written."""
    path = directory / f"{_LISTENER}{secrets.token_hex(8)}"
    _own_names.add(path.name)
    try:
        with _locked(path):
            yield
    finally:
        _own_names.discard(path.name)


def listeners(directory: Path) -> int:
    """How many other processes of this machine take part in the run whose folder this is, as their owner allows."""
    return _held(path for path in directory.glob(f"{_LISTENER}*") if path.name not in _own_names)


def using(directory: Path) -> AbstractContextManager[None]:
    """Keep the folder of a run from being removed meanwhile, if it can be written."""
    return _locked(directory / f"{_PEER}{secrets.token_hex(8)}")


def is_in_use(directory: Path) -> bool:
    """Whether a peer is `using` the folder of a run, or a process is `listening` there."""
    return _held(path for kind in (_LISTENER, _PEER) for path in directory.glob(f"{kind}*")) > 0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock: FileLock | None = None
    with contextlib.suppress(OSError):
        while lock is None or not path.exists():
            if lock is not None:
                lock.release()
            path.touch()
            with contextlib.suppress(FileNotFoundError):  # `_held` looked before it was locked, and deleted it
                lock = FileLock.try_acquire(path)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
        with contextlib.suppress(OSError):
            path.unlink()


def _held(paths: Iterable[Path]) -> int:
    """How many of these files a process holds; the others are deleted."""
    found = 0
    for path in paths:
        with contextlib.suppress(OSError):  # it ended just now
            if (lock := FileLock.try_acquire(path)) is None:
                found += 1
                continue
            try:
                path.unlink(missing_ok=True)  # of one that was killed
            except PermissionError:  # Windows removes no file that is open
                lock.release()
                path.unlink(missing_ok=True)
            lock.release()
    return found


# ---- The budget of traffic: bytes that a machine may send and receive in a day, week or month, across restarts.
#
# A budget is spread over the time: since the first byte of the period, no more may be used than time has passed, and a
# small advance beside, so that a peer takes part at full speed for a while and then rests: for a minute perhaps of a
# small daily budget, for days of a large monthly one. To slow its line down instead would make it the slowest member of
# each round. Each start fetches the state: the advance is enough for that and for as many bytes of steps, and no start
# is made that what is left is not enough for.
#
# Periods are those of the local calendar. What is used counts in the period in which the clock stands, and a few others
# are remembered: a clock that was wrong once forgets nothing. One process of a machine counts the traffic of a run.


Period = Literal["day", "week", "month"]
ADVANCE = 1 / 30
"""The share of a budget that may be used before its time."""
KEEP_PERIOD_S = 10.0
STARTS = 2
"""A budget has to be enough for so many times what a start takes, and so has its advance."""

OTHERS = 4
"""So many other periods are remembered: a machine without a battery for its clock begins each day in 1970 or 2000."""

_MAX_FILE_BYTES = 4096

logger = logging.getLogger("minga.training")


@dataclass(frozen=True)
class TrafficLimit:
    """`limit_bytes` in each `period`, in both directions together."""

    limit_bytes: float
    period: Period

    @classmethod
    def parse(cls, text: str) -> TrafficLimit:
        """The limit in a text such as "50GB/month". Raises `ConfigurationError`."""
        size, slash, period = text.strip().rpartition("/")
        if not slash or period.strip() not in get_args(Period):
            raise ConfigurationError(f"--max-traffic {text[:60]!r}: write a size and a period, such as 50GB/month")
        return cls(parse_size(size, "--max-traffic"), period.strip())  # type: ignore[arg-type]  # checked above

    def advance(self, start_bytes: float) -> float:
        """The bytes that may be used before their time, where a start takes `start_bytes`."""
        return max(ADVANCE * self.limit_bytes, STARTS * start_bytes)

    def least_for(self, start_bytes: float) -> str | None:
        """The smallest round budget with which steps can follow a start that takes so many bytes, such as "50MB/day";
        None if this one is enough.
        """
        if self.limit_bytes >= STARTS * start_bytes:
            return None
        power = 10.0 ** math.floor(math.log10(STARTS * start_bytes))
        least = next(power * first for first in (1, 2, 5, 10) if power * first >= STARTS * start_bytes)
        return f"{format_size(least)}/{self.period}".replace(" ", "")

    def bounds(self, wall_time: float) -> tuple[float, float]:
        """The begin and the end of the period that holds this Unix time, as Unix times."""
        day = dt.datetime.fromtimestamp(wall_time).astimezone().date()
        if self.period == "month":
            first = day.replace(day=1)
            last = (first + dt.timedelta(days=32)).replace(day=1)
        else:
            first = day - dt.timedelta(days=day.weekday() if self.period == "week" else 0)
            last = first + dt.timedelta(days=7 if self.period == "week" else 1)
        # Where the clocks leave out a midnight, that is the first moment of the day after.
        begin, end = (dt.datetime.combine(each, dt.time()).timestamp() for each in (first, last))
        return begin, end


class _Spent(msgspec.Struct, forbid_unknown_fields=True):
    """What was used in the period that ends where the day `ends` begins, since `since` (Unix time).

    The moment itself is another one in the next time zone to which a laptop travels.
    """

    ends: dt.date
    since: float
    used_bytes: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The present period and those in which the clock stood before, the last one last."""

    period: Period
    now: _Spent
    others: Annotated[tuple[_Spent, ...], msgspec.Meta(max_length=OTHERS)] = ()


class TrafficBudget:
    """Counts one run's traffic against a limit, in the file `path`."""

    def __init__(self, limit: TrafficLimit, path: Path, wall_time: float) -> None:
        self.limit = limit
        self.start_bytes = 0.0
        """What a start takes, as far as that is known."""
        self.is_running = False
        """Whether a session uses it; what comes next is a start otherwise."""
        self._latest_bytes, self._is_refused = 0.0, False
        self._path, self._counted, self._written_at = path, 0.0, wall_time
        self._kept = self._read() or _Kept(limit.period, _Spent(self._ends(wall_time), wall_time))
        self._renew(wall_time)

    @property
    def used_bytes(self) -> float:
        """What was used in this period."""
        return self._kept.now.used_bytes

    @property
    def text(self) -> str:
        """What was used, in words."""
        return f"{format_size(self.used_bytes)} of {format_size(self.limit.limit_bytes)} used this {self.limit.period}"

    def begin_session(self) -> None:
        """From now on totals count from 0 again."""
        self._counted, self.is_running, self._latest_bytes = 0.0, True, 0.0

    def end_session(self) -> None:
        """What comes next is another start."""
        self.is_running = False
        self.keep()

    def note(self, total_bytes: float, wall_time: float) -> None:
        """This session has sent and received so many bytes until now."""
        self._renew(wall_time)
        added = max(0.0, total_bytes - self._counted)
        self._kept.now.used_bytes += added
        self._latest_bytes = added
        self._counted = max(self._counted, total_bytes)
        if not 0.0 <= wall_time - self._written_at < KEEP_PERIOD_S:
            self._written_at = wall_time
            self.keep()

    def wait_s(self, wall_time: float, *, is_paused: bool) -> float:
        """Seconds until this machine may use more, 0 if it may now. One that has paused goes on when it has no advance
        left, so that it does not pause again at once.
        """
        self._renew(wall_time)
        limit, kept, ends = self.limit.limit_bytes, self._kept.now, self.limit.bounds(wall_time)[1]
        length = max(1.0, ends - kept.since)
        # As much as came since the last look may come before the next one.
        coming = min(self._latest_bytes, ADVANCE * limit) if self.is_running else STARTS * self.start_bytes
        if kept.used_bytes >= limit or kept.used_bytes + coming > limit:
            return max(1.0, ends - wall_time)
        advance = 0.0 if is_paused else self.limit.advance(self.start_bytes)
        if kept.used_bytes < limit * max(0.0, wall_time - kept.since) / length + advance:
            return 0.0
        free_at = kept.since + kept.used_bytes / limit * length
        return max(1.0, min(free_at, ends) - wall_time)

    def keep(self) -> None:
        """Write it down; a disk that refuses is no reason not to take part, and told once until it takes it again."""
        try:
            keep(self._path, self._kept)
            self._is_refused = False
        except StorageError as error:
            if not self._is_refused:
                self._is_refused = True
                logger.warning("the traffic of this run is not kept: %s", error)

    def _renew(self, wall_time: float) -> None:
        ends, kept = self._ends(wall_time), self._kept
        if ends != kept.now.ends:
            others = {each.ends: each for each in (*kept.others, kept.now)}
            now = others.pop(ends, None) or _Spent(ends, wall_time)
            self._kept = _Kept(self.limit.period, now, tuple(others.values())[-OTHERS:])
        self._kept.now.since = min(self._kept.now.since, wall_time)  # the clock was ahead then, or is behind now

    def _ends(self, wall_time: float) -> dt.date:
        return dt.datetime.fromtimestamp(self.limit.bounds(wall_time)[1]).astimezone().date()

    def _read(self) -> _Kept | None:
        """What was kept, unless it is of another kind of period."""
        kept = read_kept(self._path, _Kept, _MAX_FILE_BYTES)
        return kept if kept is not None and kept.period == self.limit.period else None


# ---- All rules together: whether this machine may take part now.


TRAFFIC_FILE = "traffic.json"


@dataclass(frozen=True)
class AvailabilityRules:
    """What the owner of a machine asks for; nothing by default.

    hours: take part only then. traffic: no more bytes than this. pause_on_battery: not while a laptop is unplugged.
    """

    hours: DailyHours | None = None
    traffic: TrafficLimit | None = None
    pause_on_battery: bool = False


class Pause(NamedTuple):
    """Why this machine does not take part, and for how many seconds at least; None if only its owner knows.

    `rule` stays the same while figures in `why` change.
    """

    rule: Literal["owner", "hours", "battery", "traffic"]
    why: str
    seconds: float | None


def on_battery() -> bool:
    """Whether this machine runs on its battery; False for one that has none.

    Raises `ConfigurationError` on systems that do not say.
    """
    if not hasattr(psutil, "sensors_battery"):
        raise ConfigurationError("--pause-on-battery: this system does not say whether it runs on a battery")
    battery = psutil.sensors_battery()
    return battery is not None and battery.power_plugged is False


class Availability:
    """The rules for one run, whose folder is `directory`; `now` gives Unix time."""

    def __init__(
        self,
        rules: AvailabilityRules,
        directory: Path,
        now: Callable[[], float],
        unplugged: Callable[[], bool] = on_battery,
    ) -> None:
        self._rules, self._directory, self._now, self._unplugged = rules, directory, now, unplugged
        self._budget = None if rules.traffic is None else TrafficBudget(rules.traffic, directory / TRAFFIC_FILE, now())
        self._rests = False
        """Whether the last pause was for traffic."""

    @property
    def traffic(self) -> str:
        """What was used of the budget, in words; empty without one."""
        return "" if self._budget is None else self._budget.text

    def expect_start(self, start_bytes: float) -> None:
        """So many bytes come with each start."""
        if self._budget is not None:
            self._budget.start_bytes = start_bytes

    def begin_session(self) -> None:
        """A peer joins; its traffic counts from 0."""
        self._rests = False
        if self._budget is not None:
            self._budget.begin_session()

    def note_traffic(self, total_bytes: float) -> None:
        """The peer has sent and received so many bytes since it joined."""
        if self._budget is not None:
            self._budget.note(total_bytes, self._now())

    def end_session(self) -> None:
        """The peer has left."""
        if self._budget is not None:
            self._budget.end_session()

    def pause(self) -> Pause | None:
        """Why this machine should not take part now; None if it may."""
        now = self._now()
        rests, self._rests = self._rests, False
        if is_paused(self._directory):
            return Pause("owner", "paused by minga join --pause; minga join LINK --unpause ends that", None)
        if self._rules.hours is not None and (wait_s := self._rules.hours.wait_s(now)):
            return Pause("hours", "outside of the hours of --only", wait_s)
        if self._rules.pause_on_battery and self._unplugged():
            return Pause("battery", "on battery", None)
        if self._budget is None:
            return None
        wait_s = self._budget.wait_s(now, is_paused=rests)
        self._rests = wait_s > 0.0
        return Pause("traffic", f"{self._budget.text}, more than is due by now", wait_s) if self._rests else None
