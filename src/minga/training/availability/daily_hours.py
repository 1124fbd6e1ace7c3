"""Hours of the local day in which a machine takes part, such as "22:00-07:00"; several are separated by commas."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from minga.core.errors import ConfigurationError

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
