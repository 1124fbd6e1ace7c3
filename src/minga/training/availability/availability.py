"""Whether this machine may take part now, by all rules of its owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from minga.core.errors import ConfigurationError
from minga.training.availability.daily_hours import DailyHours
from minga.training.availability.pause_file import is_paused
from minga.training.availability.traffic_budget import TrafficBudget, TrafficLimit

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
    """Why this machine does not take part, and for how many seconds at least; None if only its owner knows."""

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
            return Pause("paused by minga join --pause; minga join LINK --resume ends that", None)
        if self._rules.hours is not None and (wait_s := self._rules.hours.wait_s(now)):
            return Pause("outside of the hours of --only", wait_s)
        if self._rules.pause_on_battery and self._unplugged():
            return Pause("on battery", None)
        if self._budget is not None and (wait_s := self._budget.wait_s(now, is_paused=rests)):
            self._rests = True
            return Pause(self._budget.text, wait_s)
        return None
