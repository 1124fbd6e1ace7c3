"""Caps that people set on their own access link, which may depend on the time of day.

    10Mbit                                     always
    10Mbit, 50Mbit 23:00-07:00                 more at night
    unlimited, 5Mbit 08:00-12:00, 20Mbit 12:00-18:00

One entry has no times and holds whenever no other does. Times are local; a window may pass midnight, and two windows
may not overlap. There is no rate of 0: a peer that takes part in rounds but sends nothing would only delay the others.
A user who wants to pause leaves the run, which costs the others nothing.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from minga.core.errors import ConfigurationError
from minga.core.units import parse_rate

SLOWEST_CAP_BYTES_PER_S = 12_500.0
"""100 kbit/s: about what membership and signs of life take in a swarm of some dozens."""

MAX_WINDOWS = 24
MAX_CHARACTERS = 1000
DAY_MIN = 24 * 60
UNLIMITED = ("unlimited", "none")

_WINDOW = re.compile(r"(.+?)\s+(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)
_HINT = 'write a rate such as 10Mbit, or with times of day "10Mbit, 50Mbit 23:00-07:00"'


@dataclass(frozen=True)
class DailyWindow:
    """`rate` (bytes per second) from `begin_min` up to `end_min`, in minutes of the local day; may pass midnight."""

    begin_min: int
    end_min: int
    rate: float

    def holds(self, minute: float) -> bool:
        """Whether the window is open at this minute of the day."""
        if self.begin_min < self.end_min:
            return self.begin_min <= minute < self.end_min
        return minute >= self.begin_min or minute < self.end_min


@dataclass(frozen=True)
class RateCap:
    """A limit in bytes per second (infinite: none): `rate`, except in `windows`."""

    rate: float
    windows: tuple[DailyWindow, ...] = ()

    @classmethod
    def parse(cls, value: str | float | RateCap, name: str = "rate") -> RateCap:
        """The limit that a text describes; a number is bytes per second.

        `name` is what the message of a `ConfigurationError` calls the value.
        """
        if isinstance(value, RateCap):
            return value
        if not isinstance(value, str):
            return cls(_checked(parse_rate(value, name), value, name))
        if len(value) > MAX_CHARACTERS:
            raise ConfigurationError(f"{name} has {len(value)} characters; {_HINT}")
        always: list[float] = []
        windows: list[DailyWindow] = []
        for part in value.split(","):
            entry = part.strip()
            if (match := _WINDOW.fullmatch(entry)) is None:
                always.append(_rate(entry, name))
            else:
                windows.append(_window(match, name))
        if len(always) != 1:
            many = "no entry" if not always else "more than one entry"
            raise ConfigurationError(f"{name} = {value!r}: {many} without times of day; {_HINT}")
        if len(windows) > MAX_WINDOWS:
            raise ConfigurationError(f"{name}: {len(windows)} times of day, {MAX_WINDOWS} at most")
        _check_overlap(windows, value, name)
        return cls(always[0], tuple(windows))

    def at(self, minute: float) -> float:
        """The limit at a minute of the local day (0 to 1440); infinite where there is none."""
        return next((window.rate for window in self.windows if window.holds(minute)), self.rate)

    def now(self, wall_time: float) -> float:
        """The limit at a Unix time, by this machine's time zone; infinite where there is none."""
        if not self.windows:
            return self.rate
        local = time.localtime(wall_time)
        return self.at(local.tm_hour * 60 + local.tm_min)


def _rate(text: str, name: str) -> float:
    if text.lower() in UNLIMITED:
        return math.inf
    return _checked(parse_rate(text, name), text, name)


def _checked(rate: float, value: str | float, name: str) -> float:
    if rate < SLOWEST_CAP_BYTES_PER_S:
        raise ConfigurationError(
            f"{name} = {value!r} is less than 100 kbit/s, which leaves nothing for training beside staying in touch; "
            "to pause, leave the run"
        )
    return rate


def _window(match: re.Match[str], name: str) -> DailyWindow:
    begin, end = (_minute(match[i], match[i + 1], match[0], name) for i in (2, 4))
    if begin % DAY_MIN == end % DAY_MIN:
        raise ConfigurationError(f"{name}: {match[0]!r} begins when it ends; give the rate without times instead")
    return DailyWindow(begin % DAY_MIN, end, _rate(match[1], name))


def _minute(hours: str, minutes: str, entry: str, name: str) -> int:
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or minute > DAY_MIN:
        raise ConfigurationError(f"{name}: {entry!r} has no such time of day; write 00:00 to 24:00")
    return minute


def _check_overlap(windows: list[DailyWindow], value: str, name: str) -> None:
    for minute in {window.begin_min for window in windows}:
        if sum(window.holds(minute) for window in windows) > 1:
            at = f"{minute // 60:02}:{minute % 60:02}"
            raise ConfigurationError(f"{name} = {value!r}: two entries hold at {at}")
