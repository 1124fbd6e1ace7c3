"""The leader's side of group formation: collect members, decide when the step is full, close the group.

Theory of operation. Members join as soon as their step begins and report their samples after each micro-batch, so
the leader knows the swarm's progress with the delay of one link, not of gossip. Every member has a *limit* of samples
at which it stops by itself: at first the one that the plan of the last round gave it, then those that the leader tells
(`averaging/clocking/limits.py`).

The step is full when the samples that were reported reach the target batch size B. A member in the middle of a
micro-batch then takes part with what it has; the others wait for it only if it is about to end. So the realised batch
is B and less than one micro-batch where the members are as fast as they were, and a slow machine costs the others
nothing: what it would give too late is left to members that are ready sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.limits import Limits, collect_s, soonest_look_s
from minga.averaging.clocking.sample_quota import MemberPace, Registration, share_out
from minga.averaging.group import Contributor
from minga.averaging.messages import MAX_SAMPLES, FromLeader, Join, Prepare, Redirect, SignedPlan, Update
from minga.core.aio import Signal
from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Address, PeerId
from minga.network.rpc.stream import MessageStream

# ---- How long a full step waits for newcomers that are fetching its state.
#
# Theory of operation. While the swarm waits its state does not change. So a newcomer that can fetch it in that time
# gets in, however short the steps are; if nobody ever waited, newcomers of such a run would chase its state for ever.
# But what one step waits, everybody waits. So there is one bound for all newcomers of a step together: the time that
# the step took, and `LEAST_S` at least, in which most newcomers are done.
#
# Who misses that begins anew, with the state of the next step, and that waits as long as the newcomer has been at it
# until then, up to `MOST_S`: so it gets in as soon as that is longer than its download takes. A newcomer that needs
# longer than `MOST_S` and longer than a step, or pretends to, is given up when it has been at it for `GIVEN_UP` times
# as long.


LEAST_S, MOST_S = 2.0, 10.0
"""Bounds of what one step waits for all newcomers together; a step that itself took longer waits as long as that."""

GIVEN_UP = 3.0


def waited_for(syncing: Mapping[PeerId, float], step_s: float) -> list[PeerId]:
    """Those for whom a step that took `step_s` to fill waits; `syncing` tells for how long each has been at it."""
    return [peer for peer, seconds in syncing.items() if seconds < GIVEN_UP * longest_hold_s(step_s)]


def hold_s(syncing: Mapping[PeerId, float], step_s: float, since_full_s: float) -> float:
    """For how many seconds such a step waits for all of them together, when it has been full for `since_full_s`."""
    before = [syncing[peer] - since_full_s for peer in waited_for(syncing, step_s)]
    return min(max(LEAST_S, step_s, *before), longest_hold_s(step_s))


def longest_hold_s(step_s: float) -> float:
    """How many seconds a step that takes `step_s` waits at the very most."""
    return max(MOST_S, step_s)


# ---- One group in the making.


JOIN_GRACE_S = 1.5
"""Seconds that a full step waits for members of the last round that are alive but have not joined yet, counted from
the end of that round where they are still at it."""

CLOSE_CHECK_S, HOLD_CHECK_S = 0.25, 0.1
REPORTS_S = 0.25
"""Seconds after which reports let a leader look whether it still leads."""

PROMISE_S = 1.0
"""Seconds for which a leader waits for the promises that it asked for, before it looks anew which members are there."""

MAX_FOLLOWERS = 999
"""So that a plan fits into a message, whatever addresses its members tell."""

GRACE_S, GRACE_SHARE = 0.02, 0.03
"""Who stops within so many seconds, or this share of the step, is waited for though the step is full."""


class OutOfSyncError(RejectedError):
    """The swarm is at a later step than this peer, or in another state: it has to fetch the state first."""


@dataclass
class Surroundings:
    """What the leader reads from the rest of the peer while it gathers."""

    expected: Callable[[], Collection[PeerId]]
    """Members of the last round that are alive: a full step waits `JOIN_GRACE_S` for those that have not joined."""
    syncing: Callable[[], Mapping[PeerId, float]]
    """Newcomers that are fetching state, and for how many seconds each has done so by now."""
    may_close: Callable[[Collection[PeerId], Mapping[PeerId, Registration]], bool]
    """Whether a group may take the step: given those of it who promised this attempt's number, and all of it."""
    promise: Callable[[int], int]
    """The leader itself promises a number, and says what it promised by now (0: it has no vote)."""
    is_in_doubt: Callable[[Mapping[PeerId, Registration], Collection[PeerId]], bool]
    """Whether the step may have a committed result already: given all of the group, and those of it who promised."""
    abdicate: Callable[[], Address | None]
    """Another peer that leads this step after all, or None."""
    highest_ballot: Callable[[], int]
    """The highest number that this attempt may have: a liar could else name one that the others cannot promise."""
    at_work: Callable[[], Collection[PeerId]] = tuple
    """Those of the expected whose last round still runs: they are waited for as long as that was foreseen."""


@loop_bound
@dataclass
class GroupLeader:
    """One group in the making. `run` returns when it is closed; `outcome` tells waiting members."""

    step: int
    me: PeerId
    own: Registration
    contributor: Contributor
    batch: BatchSize
    around: Surroundings
    least_limit: int = 0
    """The samples that any member may compute: 1 where a micro-batch that is too late for a step counts in another."""
    registrations: dict[PeerId, Registration] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)
    closed: bool = False
    _is_over: bool = False
    _has_news: bool = False
    _begun_s: float = 0.0
    _full_s: float | None = None
    _held_s: float = 0.0
    _limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        self._limits = Limits(self.me, self.contributor, self.batch, self._tell, self.least_limit)

    # ---- members

    async def attend(self, peer: PeerId, join: Join, stream: MessageStream) -> None:
        """Register `peer` and listen to it until its stream ends, which raises.

        Raises `RejectedError` if the group is full, or comes to nothing.
        """
        if self._is_over:  # its members are being sent on: one that came now would never hear of it
            raise RejectedError("it does not lead any more", code=RefusalCode.STAND_BY)
        if len(self.registrations) >= MAX_FOLLOWERS and peer not in self.registrations:
            raise RejectedError(f"a group has at most {MAX_FOLLOWERS + 1} members", code=RefusalCode.FULL)
        registration = Registration(join, join.report, _now(), stream)
        self.registrations[peer] = registration
        self.look_again()
        try:
            while True:
                update = await stream.receive(Update)
                registration.report, registration.reported_at_s = update.report, _now()
                registration.ballot = max(registration.ballot, update.ballot)
                self.changed.fire()
        finally:
            if self.registrations.get(peer) is registration:
                del self.registrations[peer]
                self.look_again()

    # ---- the leader's own task

    async def run(self) -> Address | None:
        """Gather until the step is full; then the group is `closed` and None is returned.

        Returns an address instead if another leader was found: the members were redirected there.
        """
        self._begun_s = _now()
        listener = asyncio.get_running_loop().create_task(self._listen_to_own_trainer())
        try:
            while True:
                if (leader := self.around.abdicate()) is not None:
                    self._is_over = True
                    await self._tell_all(Redirect(leader))
                    return leader
                if self._is_full() and await self._everyone_present() and await self._close():
                    self.closed = True
                    return None
                await self._direct()
                await self._wait_for_news()
        finally:
            listener.cancel()

    def look_again(self) -> None:
        """Something besides samples changed, such as who leads."""
        self._has_news = True
        self.changed.fire()

    async def send_plan(self, plan: SignedPlan, members: Collection[PeerId]) -> None:
        """Send the plan to all members; who cannot be reached is found missing by the aggregators."""
        await self._tell_all(plan, members)

    async def dismiss(self) -> None:
        """Let the members go without a plan: this peer cannot lead after all."""
        self._is_over = True
        for registration in list(self.registrations.values()):
            if registration.stream is not None:
                await registration.stream.close()

    def everyone(self) -> dict[PeerId, Registration]:
        """All registrations, the leader's included."""
        return {self.me: self.own, **self.registrations}

    @property
    def ballot(self) -> int:
        """The number of this attempt: the highest that one of its members promised, but for those out of all bounds."""
        most = max(self.around.highest_ballot(), self.own.ballot)
        return max(registration.ballot for registration in self.everyone().values() if registration.ballot <= most)

    def voters(self) -> set[PeerId]:
        """The members that promised this attempt's number."""
        ballot = self.ballot
        return {peer for peer, registration in self.everyone().items() if registration.ballot == ballot > 0}

    def limits_of_the_next(
        self, members: Sequence[PeerId], registrations: Mapping[PeerId, Registration], batch: int
    ) -> tuple[int, ...]:
        """The samples at which these members should stop in the next step, of `batch` samples; before anything is known
        of one, after its first micro-batch. `registrations` are those of the closed group: some may have left since.
        """
        paces = [registrations[peer].pace_of_the_next() for peer in members]
        best = [min(max(each, self.least_limit), MAX_SAMPLES) for each in share_out(batch, paces).samples]
        return tuple(limit if registrations[peer].report.rate else 1 for peer, limit in zip(members, best, strict=True))

    # ---- inner workings

    async def _wait_for_news(self) -> None:
        """Until the samples that were reported may be enough, a member came or left, or limits are compared again.

        Other reports change nothing before limits are compared again, and little else: it would cost dear to look at
        all members with each of them. For the same reason the leader of a large group waits for a moment after a look:
        whatever it hears in that moment, of newcomers or of other leaders, counts with the next one.
        """
        members, now = len(self.registrations), _now()
        reports_count_s, news_count_s = now + max(REPORTS_S, soonest_look_s(members)), now + collect_s(members)
        until_s = now + self._limits.pause_s
        while (left_s := (min(news_count_s, until_s) if self._has_news else until_s) - _now()) > 0:
            await self.changed.wait(left_s)
            self._hear_own()
            reported = sum(registration.report.samples for registration in self.everyone().values())
            if reported >= self.batch.present or _now() >= reports_count_s:
                break
        self._has_news = False

    async def _listen_to_own_trainer(self) -> None:
        while True:
            await self.contributor.changed.wait()
            self.changed.fire()

    def _heard(self) -> dict[PeerId, Registration]:
        """Those on whose samples the step counts. Who fell quiet may be gone with all that it had, so the others go on
        as if it were, and do not wait for that to be known.
        """
        return {peer: registration for peer, registration in self.everyone().items() if not registration.is_quiet}

    def _refresh(self) -> None:
        self.batch.learn(self.everyone().values())
        self._hear_own()

    def _hear_own(self) -> None:
        self.own.report, self.own.reported_at_s = self.contributor.report(), _now()

    def _samples(self) -> int:
        return sum(registration.report.samples for registration in self._heard().values())

    def _is_full(self) -> bool:
        """Whether there are samples enough; none are needed for a result that may be committed already."""
        self._refresh()
        return self._is_in_doubt() or self._samples() >= self.batch.present

    def _is_in_doubt(self) -> bool:
        everyone = self.everyone()
        if all(registration.join.accepted is None for registration in everyone.values()):
            return False  # asked with each report of a member
        return self.around.is_in_doubt(everyone, self.voters())

    async def _direct(self) -> None:
        """Tell the members where to stop, once those are here that are about to come: all limits count on them."""
        everyone = self.everyone()
        if _now() >= self._begun_s + JOIN_GRACE_S or not set(self.around.expected()) - set(everyone):
            await self._limits.direct(self._heard(), self._begun_s)

    async def _everyone_present(self) -> bool:
        """Wait a little for members of the last round that live but have not joined; False if the step emptied, or if
        the promises of all show that a result which one of them held was not committed.
        """
        deadline = _now() + JOIN_GRACE_S
        while (missing := set(self.around.expected()) - set(self.everyone())) and _now() < deadline:
            if missing.intersection(self.around.at_work()):
                deadline = _now() + JOIN_GRACE_S
            await self.changed.wait(min(0.1, deadline - _now()))
        if self._is_in_doubt():
            await self._ask_for_promises()
        return self._is_full()

    async def _close(self) -> bool:
        """Settle which members are in the group; False if it cannot close after all.

        Raises `OutOfSyncError` if the state of this peer cannot be the same as that of most.
        """
        await self._send_the_unlike_away()
        if not self._is_full():
            return False
        self._full_s = self._full_s or _now()
        await self._wait_for_those_about_to_stop()
        await self._hold_for_newcomers(self._full_s)
        await self._ask_for_promises()
        while not self._may_close():
            if self.around.abdicate() is not None:
                return False
            await self.changed.wait(CLOSE_CHECK_S)
            await self._ask_for_promises()
        else:
            await self._hold_for_newcomers(self._full_s)
        await self._hear_from_everybody()
        return self._may_close() and self._is_full()

    def _may_close(self) -> bool:
        return self.around.may_close(self.voters(), self.everyone())

    async def _ask_for_promises(self) -> None:
        """Ask members that promised a lower number for this attempt's, and give them a moment to answer."""
        ballot, everyone = self.ballot, self.everyone()
        self.own.ballot = self.around.promise(ballot)
        late = {
            peer: registration
            for peer, registration in everyone.items()
            if registration.stream is not None and 0 < registration.ballot < ballot
        }
        if late:
            await asyncio.gather(*(self._tell(registration, Prepare(ballot)) for registration in late.values()))
            deadline = _now() + PROMISE_S
            while _now() < deadline and any(
                registration.ballot < ballot and self.registrations.get(peer) is registration
                for peer, registration in late.items()
            ):
                await self.changed.wait(deadline - _now())

    async def _send_the_unlike_away(self) -> None:
        pasts = Counter(past for registration in self.everyone().values() if (past := registration.join.previous))
        right = max(pasts, key=lambda past: (pasts[past], past == self.own.join.previous, past), default="")
        if self.own.join.previous not in ("", right):
            raise OutOfSyncError(
                "the others applied another result than this peer", code=RefusalCode.DIVERGED, round=self.step
            )
        for peer, registration in list(self.registrations.items()):
            if registration.join.previous not in ("", right) and registration.stream is not None:
                del self.registrations[peer]
                with contextlib.suppress(RemoteError):
                    await registration.stream.refuse(
                        RefusalCode.DIVERGED, "it applied another result in the last round than most others"
                    )

    async def _wait_for_those_about_to_stop(self) -> None:
        begun, now = self._begun_s, _now()
        cap_s = max(GRACE_S, GRACE_SHARE * (now - begun))

        def is_about_to_stop(registration: Registration) -> bool:
            pace, limit = registration.pace(now), registration.limit
            return registration.goes_on and limit is not None and pace.samples < limit and _last_s(pace, limit) <= cap_s

        late = {peer for peer, registration in self.everyone().items() if is_about_to_stop(registration)}
        deadline = now + 1.5 * cap_s
        while any(s.goes_on for p, s in self.everyone().items() if p in late) and _now() < deadline:
            await self.changed.wait(deadline - _now())
            self._refresh()

    async def _hold_for_newcomers(self, full_s: float) -> None:
        """Wait for newcomers that are fetching the present state, and then a little for each of them to join."""
        step_s, since_s = full_s - self._begun_s, _now() - self._held_s
        until: dict[PeerId, float] = {}
        most_s = 0.0
        while True:
            syncing, self._held_s = self.around.syncing(), _now() - since_s
            most_s = max(most_s, hold_s(syncing, step_s, _now() - full_s))
            if self._held_s < most_s:
                until.update(dict.fromkeys(waited_for(syncing, step_s), _now() + JOIN_GRACE_S))
            else:  # only for newcomers that have it by now
                until = {peer: each_s for peer, each_s in until.items() if peer not in syncing}
            if all(peer in self.registrations or _now() >= until[peer] for peer in until):
                return
            await self.changed.wait(HOLD_CHECK_S)

    async def _hear_from_everybody(self) -> None:
        """Wait until those that fell quiet are heard again or given up: found out in a round it costs more time.

        Who falls quiet meanwhile is not waited for: of many members, or of some that do so by turns, one always is.
        """
        quiet = list(self.registrations.items())
        while quiet := [(peer, r) for peer, r in quiet if r.is_quiet and self.registrations.get(peer) is r]:
            await self.changed.wait(0.05)

    async def _tell_all(self, message: FromLeader, members: Collection[PeerId] | None = None) -> None:
        registrations = [
            registration for peer, registration in self.registrations.items() if members is None or peer in members
        ]
        await asyncio.gather(*(self._tell(registration, message) for registration in registrations))

    async def _tell(self, registration: Registration, message: FromLeader) -> None:
        if registration.stream is not None:
            with contextlib.suppress(RemoteError):  # its listener notices too and gives the registration away
                await registration.stream.send(message)


def _last_s(pace: MemberPace, limit: int) -> float:
    """In how many seconds a member that goes on reaches its limit."""
    return pace.next_s + (math.ceil((limit - pace.samples) / max(1, pace.micro_batch)) - 1) * pace.micro_batch_s


def _now() -> float:
    return asyncio.get_running_loop().time()
