"""One member of a group in the making, as its leader sees it, and what can be expected of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minga.averaging.clocking.sample_quota import SHORTEST_S, MemberPace
from minga.averaging.messages import MAX_SAMPLES, Join, PeerScore, Report
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.keepalive import LEAST_TICKS, PULSE_S

LONGEST_ROUND_TRIP_S = 8.0
QUIET_S = 0.5
UPDATE_PERIOD_S = 0.25
"""Seconds between two reports of a member, at least, unless it stops."""

AWAY_S = 1.0
"""A micro-batch that takes so much longer than three usual ones is none."""


@dataclass(eq=False)
class Registration:
    """One member as the leader sees it: its last report and when (loop time) that came."""

    join: Join
    report: Report
    reported_at_s: float
    stream: MessageStream | None = None  # None for the leader itself
    ordered: int | None = None
    ordered_at_s: float = 0.0
    ballot: int = 0
    """The number that it promised to this leader, 0 if it has no vote."""

    def __post_init__(self) -> None:
        self.ballot = self.join.ballot

    @property
    def round_trip_s(self) -> float:
        """Round-trip time to this member, 0 if unknown; what counts is at most `LONGEST_ROUND_TRIP_S`."""
        return min(self.stream.round_trip_s, LONGEST_ROUND_TRIP_S) if self.stream is not None else 0.0

    @property
    def goes_on(self) -> bool:
        """Whether it is in the middle of a micro-batch, as far as it told."""
        return bool(self.report.micro_batch) and not self.report.parked

    @property
    def gives(self) -> bool:
        """Whether it is expected to give something to the round that is closed now."""
        return self.join.computes and bool(self.report.samples or self.goes_on)

    @property
    def score(self) -> PeerScore | None:
        """How good its contribution would be; None where it has nothing to give, whatever it says."""
        return self.report.score if self.join.computes and self.report.samples else None

    @property
    def limit(self) -> int | None:
        """The samples at which it stops, as soon as it has heard of it."""
        return self.report.limit if self.ordered is None else self.ordered

    def order(self, samples: int, now_s: float) -> None:
        """Note that it is told to stop at so many samples."""
        self.ordered, self.ordered_at_s = samples, now_s

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was heard of it for longer than two pulses and a round trip take."""
        if self.stream is None or (quiet_s := self.stream.quiet_s) <= QUIET_S:
            return False  # asked often, of all members
        return quiet_s > QUIET_S + self.round_trip_s + self._longer_pause_s

    @property
    def _longer_pause_s(self) -> float:
        """Seconds by which it is quiet for longer than in a small group."""
        return max(0.0, self.stream.pause_s - LEAST_TICKS * PULSE_S) if self.stream is not None else 0.0

    def pace(self, now_s: float) -> MemberPace:
        """How it goes on, as far as one can tell; times are those at which its reports will be here.

        What is overdue by some time is expected to take as long again: without that it would be due for ever.
        """
        report, each_s = self.report, max(self.report.micro_batch_s, SHORTEST_S)
        if not report.micro_batch or report.micro_batch_s <= 0:
            return MemberPace(report.samples, limit=self.limit)
        if report.parked:
            is_told = self.limit is not None and self.limit > report.samples
            left_s = self.round_trip_s + each_s - (now_s - self.ordered_at_s if is_told else 0.0)
            return MemberPace(report.samples, report.micro_batch, abs(left_s), each_s, self.limit)
        busy_s = report.busy_s + (now_s - self.reported_at_s)
        if busy_s > 3 * each_s + AWAY_S + self._longer_pause_s:  # it does something else at the moment
            return MemberPace(report.samples, limit=self.limit)
        unheard = self._unheard(busy_s, each_s)
        samples = min(report.samples + unheard * report.micro_batch, MAX_SAMPLES)
        return MemberPace(samples, report.micro_batch, abs((unheard + 1) * each_s - busy_s), each_s, self.limit)

    def pace_of_the_next(self) -> MemberPace:
        """How it will go on in the next step, from the moment at which that begins."""
        report = self.report
        if not report.micro_batch or report.micro_batch_s <= 0:
            return MemberPace(0)
        return MemberPace(0, report.micro_batch, self.round_trip_s + report.micro_batch_s, report.micro_batch_s)

    def _unheard(self, busy_s: float, each_s: float) -> int:
        """Micro-batches that must have ended although no report says so: these come only every `UPDATE_PERIOD_S`,
        but at once for the one at which the member stops.
        """
        most = math.floor(busy_s / each_s)
        if self.limit is not None:
            most = min(most, math.ceil((self.limit - self.report.samples) / self.report.micro_batch) - 1)
        return max(0, most) if busy_s < each_s + 2 * UPDATE_PERIOD_S + self._longer_pause_s else 0
