"""One member of a group in the making, as its leader sees it, and what can be expected of it."""

from __future__ import annotations

from dataclasses import dataclass

from minga.averaging._messages import Join, Report
from minga.network._messages import MessageStream
from minga.network._pulse import LEAST_TICKS, PULSE_S

LONGEST_ROUND_TRIP_S = 8.0
QUIET_S = 0.5


@dataclass
class Seat:
    """One member as the leader sees it: its last report and when (loop time) that came."""

    join: Join
    report: Report
    reported_at_s: float
    stream: MessageStream | None = None  # None for the leader itself

    @property
    def round_trip_s(self) -> float:
        """Round-trip time to this member, 0 if unknown; what counts is at most `LONGEST_ROUND_TRIP_S`."""
        return min(self.stream.round_trip_s, LONGEST_ROUND_TRIP_S) if self.stream is not None else 0.0

    @property
    def is_parked(self) -> bool:
        """Whether it stopped at a boundary, or has nothing to stop."""
        return self.report.parked or not self.report.micro_batch

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was heard of it for longer than two pulses and a round trip take."""
        return self.stream is not None and self.stream.quiet_s > QUIET_S + self.round_trip_s + self._longer_pause_s

    @property
    def _longer_pause_s(self) -> float:
        """Seconds by which it is quiet for longer than in a small group."""
        return max(0.0, self.stream.pause_s - LEAST_TICKS * PULSE_S) if self.stream is not None else 0.0

    def samples_at(self, now_s: float, grace_s: float) -> float:
        """Samples this member will have once it parked, if it is told to at `now_s`.

        Its report was half a round trip old when it came, and it will hear of the order as much later.
        """
        report = self.report
        if report.parked or not report.micro_batch or report.micro_batch_s <= 0:
            return report.samples
        busy_s = report.busy_s + (now_s - self.reported_at_s)
        if busy_s > 3 * report.micro_batch_s + 1.0 + self._longer_pause_s:  # it does something else at the moment
            return report.samples
        finished, current_s = divmod(busy_s + self.round_trip_s, report.micro_batch_s)
        in_time = report.micro_batch_s - current_s <= grace_s
        return report.samples + report.micro_batch * (finished + in_time)

    def guessed_samples(self, now_s: float) -> int:
        """One micro-batch if some are counted that nobody reported: so much the guess is often wrong; else 0."""
        report = self.report
        busy_s = report.busy_s + (now_s - self.reported_at_s) + self.round_trip_s
        return report.micro_batch if not report.parked and busy_s >= report.micro_batch_s > 0 else 0

    def remaining_s(self, now_s: float) -> float:
        """Seconds from when it hears an order of `now_s` until its micro-batch of then ends, as far as one can tell."""
        report = self.report
        if report.parked or not report.micro_batch or report.micro_batch_s <= 0:
            return 0.0
        busy_s = report.busy_s + (now_s - self.reported_at_s) + self.round_trip_s
        return report.micro_batch_s - busy_s % report.micro_batch_s
