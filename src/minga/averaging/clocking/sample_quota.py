"""What a leader knows of each member of its group, and where each one stops so that together they have B samples.

Theory of operation. B is the target batch size of the step. Samples come in micro-batches: member i's next one is there
in `next_s` seconds, and each further one `micro_batch_s` later. Taken in the order of time, those up to the moment T at
which the sum reaches B are the ones that make the step as short as it can be, and what each member has by then is its
*limit*. Members stop there by themselves, so it does not matter how late an order to stop would reach them: the
realised batch is the sum of the limits, which is B and, but for what follows, less than one micro-batch more.

A member that cannot finish its first micro-batch by T has nothing to give to this step without making all others wait.
At T some of several micro-batches that end at once may be too many; those are left out whose members have given others,
and a member's only one where the batch would exceed B by more than `SURPLUS` otherwise.

The time in which T lies is halved until no more micro-batches end in it than there are members; these are taken one by
one. So the work is bounded, whatever members say of theirs. A leader asks many times in a step, mostly about few
members: numbers of Python are faster there than arrays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final

from minga.averaging.messages import MAX_SAMPLES, Join, PeerScore, Report
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.keepalive import LEAST_TICKS, PULSE_S
from minga.network.rpc.stream import MessageStream

SURPLUS: Final = 0.1
"""By what fraction of B the batch may be larger so that nobody's only micro-batch is in vain."""

SAME: Final = 1e-9
"""Moments that differ by less than this share of the time until then are one."""

SHORTEST_S: Final = 1e-6
"""No micro-batch takes less time."""


@dataclass(frozen=True)
class MemberPace:
    """How one member goes on: it has `samples`, and `micro_batch` more (0: no more come) each `micro_batch_s` seconds,
    the first of them in `next_s`; as things stand it stops at `limit` (None: it does not).
    """

    samples: int
    micro_batch: int = 0
    next_s: float = 0.0
    micro_batch_s: float = 0.0
    limit: int | None = None


@dataclass(frozen=True)
class SampleQuotas:
    """The samples at which each member should stop, and in how many seconds all of them are there (inf: never)."""

    samples: tuple[int, ...]
    seconds: float


def share_out(target: int, paces: Sequence[MemberPace]) -> SampleQuotas:
    """The limits by which `target` samples are there as soon as possible, whatever limits there are at present."""
    counts, seconds = _until(target, paces, [math.inf] * len(paces))
    surplus = sum(p.samples + p.micro_batch * count for p, count in zip(paces, counts, strict=True)) - target
    if surplus > 0:
        order = sorted(range(len(paces)), key=lambda i: (-_last_s(paces[i], counts[i]), i))
        for keeps_one, allowed in ((True, 0), (False, math.floor(SURPLUS * target))):
            for index in order:
                size = paces[index].micro_batch
                spare = counts[index] - (1 if keeps_one and not paces[index].samples else 0)
                fewer = min(spare, surplus // size) if size and surplus > allowed else 0
                if fewer > 0:
                    counts[index] -= fewer
                    surplus -= size * fewer
    return SampleQuotas(tuple(p.samples + p.micro_batch * c for p, c in zip(paces, counts, strict=True)), seconds)


def seconds_as_is(target: int, paces: Sequence[MemberPace]) -> float:
    """In how many seconds `target` samples are there if all stop at their present limits; inf if they never are."""
    most = [
        math.inf if p.limit is None else max(0, math.ceil((p.limit - p.samples) / (p.micro_batch or 1))) for p in paces
    ]
    return _until(target, paces, most)[1]


def _until(target: int, paces: Sequence[MemberPace], most: Sequence[float]) -> tuple[list[int], float]:
    """The micro-batches that each member finishes until there are `target` samples, and the seconds until then; or all
    that are still to come, `most` of each, and inf.
    """
    lacking = target - sum(pace.samples for pace in paces)
    if lacking <= 0:
        return [0] * len(paces), 0.0
    sizes = [pace.micro_batch for pace in paces]
    enough = [int(min(each, -(-lacking // size))) if size else 0 for each, size in zip(most, sizes, strict=True)]
    if sum(map(mul, sizes, enough)) < lacking:
        return enough, math.inf
    times = [(p.next_s, max(p.micro_batch_s, SHORTEST_S), count) for p, count in zip(paces, enough, strict=True)]

    def finished(by_s: float) -> list[int]:
        return [
            min(count, math.floor((by_s - next_s) / each_s) + 1) if by_s >= next_s else 0
            for next_s, each_s, count in times
        ]

    early_s, late_s = 0.0, max(each_s for _, each_s, _ in times)
    counts, later = finished(early_s), finished(late_s)
    while sum(map(mul, sizes, later)) < lacking:
        early_s, late_s, counts = late_s, 2.0 * late_s, later
        later = finished(late_s)
    while sum(later) - sum(counts) > len(paces) and early_s < (middle_s := 0.5 * (early_s + late_s)) < late_s:
        middle = finished(middle_s)
        if sum(map(mul, sizes, middle)) < lacking:
            early_s, counts = middle_s, middle
        else:
            late_s, later = middle_s, middle
    ends = sorted(
        (_last_s(pace, count), index)
        for index, pace in enumerate(paces)
        for count in range(counts[index] + 1, later[index] + 1)
    )
    lacking -= sum(map(mul, sizes, counts))
    until_s = max(map(_last_s, paces, counts))
    for ends_s, index in ends:
        if lacking <= 0:
            break
        counts[index] += 1
        lacking -= sizes[index]
        until_s = max(until_s, ends_s)
    for index, pace in enumerate(paces):
        if counts[index] < enough[index] and _last_s(pace, counts[index] + 1) <= until_s * (1.0 + SAME):
            counts[index] += 1
    return counts, max(0.0, until_s)  # what is overdue is as good as there


def _last_s(pace: MemberPace, count: int) -> float:
    """When a member finishes the last of `count` micro-batches; -inf without any."""
    if count <= 0:
        return -math.inf
    return pace.next_s + (count - 1) * max(pace.micro_batch_s, SHORTEST_S)


# ---- One member of a group in the making, as its leader sees it, and what can be expected of it.


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
            told_s = self.reported_at_s if self.ordered is None else self.ordered_at_s
            left_s = self.round_trip_s + each_s - (now_s - told_s if is_told else 0.0)
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


# ---- The leader tells the members of a group in the making where to stop, if that is not what they know and pays.
#
# It goes on comparing while the step is computed: if the step would be full clearly sooner with other limits (a member
# is slower than it was, or left, or came), it tells new ones.


GAIN_S, GAIN_SHARE = 0.02, 0.05
"""New limits are told if the step is full sooner by so much, or by this share of the step."""

SOONEST_LOOK_S, LATEST_LOOK_S = 0.05, 1.0
LOOKED_AT_ONCE = 64
"""Seconds between two comparisons of the limits with better ones; with so many members twice as long, and so on."""


def soonest_look_s(members: int) -> float:
    """Seconds after which a leader of so many members may look at all of them again: it costs more with each."""
    return SOONEST_LOOK_S * (1.0 + members / LOOKED_AT_ONCE)


def collect_s(members: int) -> float:
    """Seconds for which it collects news of who comes and goes before it looks at all again; none in a small group."""
    return SOONEST_LOOK_S * max(0.0, members / LOOKED_AT_ONCE - 1.0)


@loop_bound
class Limits:
    """The limits of one step; none is below `least`."""

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._look_s = 0.0
        self._unknown: set[PeerId] = set()
        """Members that were told to stop after their first micro-batch, for nothing was known of them."""

    @property
    def pause_s(self) -> float:
        """Seconds until limits may be compared again."""
        left_s = self._look_s - asyncio.get_running_loop().time()
        return max(SOONEST_LOOK_S, min(left_s, UPDATE_PERIOD_S) if self._unknown else left_s)

    def better(self, batch: int, everyone: Mapping[PeerId, Registration], begun_s: float) -> dict[PeerId, int]:
        """The limits that members are to be told now, in a step of `batch` samples that began at `begun_s` by the
        loop's clock; none if it is not yet time to compare all of them with the best ones.
        """
        now = asyncio.get_running_loop().time()
        strangers = [
            peer
            for peer, registration in everyone.items()
            if registration.limit is None or not registration.report.rate
        ]
        is_known = any(peer in everyone and everyone[peer].report.rate for peer in self._unknown)
        if now < self._look_s and not is_known and all(everyone[peer].ordered is not None for peer in strangers):
            return {}
        self._unknown = {peer for peer in strangers if not everyone[peer].report.rate}
        paces = {peer: registration.pace(now) for peer, registration in everyone.items()}
        best = share_out(batch, list(paces.values()))
        as_is_s = seconds_as_is(batch, list(paces.values()))
        step_s = now - begun_s + best.seconds
        limits = {peer: max(each, self._least) for peer, each in zip(paces, best.samples, strict=True)}
        limits |= {peer: paces[peer].samples + 1 for peer in self._unknown}
        limits = {peer: min(each, MAX_SAMPLES) for peer, each in limits.items()}  # whatever is made of a report
        is_late = as_is_s > best.seconds + max(GAIN_S, GAIN_SHARE * step_s)
        is_much = sum(registration.limit or 0 for registration in everyone.values()) > (1.0 + SURPLUS) * batch
        told = list(limits) if is_late or is_much else strangers
        self._look_s = now + min(LATEST_LOOK_S, max(soonest_look_s(len(everyone)), 0.2 * best.seconds))
        return {peer: limits[peer] for peer in told if limits[peer] != everyone[peer].limit}
