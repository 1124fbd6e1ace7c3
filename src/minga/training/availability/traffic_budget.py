"""How many bytes a machine may send and receive in a day, a week or a month, kept across restarts.

A budget is spread over the time: since the first byte of the period, no more may be used than time has passed, and a
small advance beside, so that a peer takes part for some hours at full speed and then rests. To slow its line down
instead would make it the slowest member of each round. Each start fetches the state: the advance is enough for that and
for as many bytes of steps, and no start is made that what is left is not enough for.

Periods are those of the local calendar. If the clock goes back into an earlier period, what was used counts in that
one: nothing is forgotten by setting a clock, and a clock that was wrong once keeps no machine out for long. Several
peers of one machine share the file, and each adds what it used.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError
from minga.core.files import write_atomically
from minga.core.units import format_size, parse_size

Period = Literal["day", "week", "month"]
ADVANCE = 1 / 30
"""The share of a budget that may be used before its time."""
KEEP_PERIOD_S = 10.0
STARTS = 2
"""A budget has to be enough for so many times what a start takes, and so has its advance."""

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
        begin, end = (dt.datetime.combine(each, dt.time()).astimezone().timestamp() for each in (first, last))
        return begin, end


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The period that ends at `ends`, in which traffic began at `since` (Unix times)."""

    period: Period
    ends: float
    since: float
    used_bytes: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class TrafficBudget:
    """Counts one run's traffic against a limit, in the file `path`."""

    def __init__(self, limit: TrafficLimit, path: Path, wall_time: float) -> None:
        self.limit = limit
        self.start_bytes = 0.0
        """What a start takes, as far as that is known."""
        self._is_running, self._latest_bytes = False, 0.0
        self._path, self._counted, self._written_at, self._unwritten = path, 0.0, wall_time, 0.0
        self._kept = self._read() or self._begin(wall_time)
        self._renew(wall_time)

    @property
    def used_bytes(self) -> float:
        """What was used in this period."""
        return self._kept.used_bytes

    @property
    def text(self) -> str:
        """What was used, in words."""
        return f"{format_size(self.used_bytes)} of {format_size(self.limit.limit_bytes)} used this {self.limit.period}"

    def begin_session(self) -> None:
        """From now on totals count from 0 again."""
        self._counted, self._is_running, self._latest_bytes = 0.0, True, 0.0

    def end_session(self) -> None:
        """What comes next is another start."""
        self._is_running = False
        self.keep()

    def note(self, total_bytes: float, wall_time: float) -> None:
        """This session has sent and received so many bytes until now."""
        self._renew(wall_time)
        added = max(0.0, total_bytes - self._counted)
        self._kept.used_bytes += added
        self._unwritten += added
        self._latest_bytes = added
        self._counted = max(self._counted, total_bytes)
        if not 0.0 <= wall_time - self._written_at < KEEP_PERIOD_S:
            self._written_at = wall_time
            self.keep()

    def wait_s(self, wall_time: float, *, is_paused: bool) -> float:
        """Seconds until this machine may use more, 0 if it may now.

        A machine that has paused goes on when it has no advance left, so that it does not pause again at once.
        """
        self._renew(wall_time)
        limit, kept = self.limit.limit_bytes, self._kept
        length = max(1.0, kept.ends - kept.since)
        # As much as came since the last look may come before the next one.
        coming = min(self._latest_bytes, ADVANCE * limit) if self._is_running else STARTS * self.start_bytes
        if kept.used_bytes >= limit or kept.used_bytes + coming > limit:
            return max(1.0, kept.ends - wall_time)
        advance = 0.0 if is_paused else self.limit.advance(self.start_bytes)
        if kept.used_bytes < limit * max(0.0, wall_time - kept.since) / length + advance:
            return 0.0
        return max(1.0, kept.since + kept.used_bytes / limit * length - wall_time)

    def keep(self) -> None:
        """Write it down; a disk that refuses is no reason not to take part."""
        there = self._read()
        if there is not None and there.ends == self._kept.ends:  # another peer of this machine may have added to it
            self._kept.used_bytes = max(self._kept.used_bytes, there.used_bytes + self._unwritten)
        try:
            write_atomically(self._path, msgspec.json.encode(self._kept))
        except OSError as error:
            logger.warning("the traffic of this run cannot be kept in %s: %s", self._path, error)
            return
        self._unwritten = 0.0

    def _renew(self, wall_time: float) -> None:
        begin, ends = self.limit.bounds(wall_time)
        if wall_time >= self._kept.ends:
            self._kept, self._unwritten = self._begin(wall_time), 0.0
        elif ends < self._kept.ends:  # the clock has gone back
            self._kept = _Kept(self.limit.period, ends, max(begin, min(self._kept.since, wall_time)), self.used_bytes)

    def _begin(self, wall_time: float) -> _Kept:
        return _Kept(self.limit.period, self.limit.bounds(wall_time)[1], wall_time)

    def _read(self) -> _Kept | None:
        """What was kept, unless it is of another kind of period."""
        try:
            with self._path.open("rb") as file:
                kept = decode_json(file.read(_MAX_FILE_BYTES), _Kept)
        except (OSError, *DECODING_ERRORS):
            return None
        return kept if kept.period == self.limit.period and kept.since < kept.ends < math.inf else None
