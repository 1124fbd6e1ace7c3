"""The leader's side of group formation: collect members, decide when the step is full, close the group.

Theory of operation. Members join as soon as their step begins and report their samples after each micro-batch, so
the leader knows the swarm's progress with the delay of one link, not of gossip. Every member has a *limit* of samples
at which it stops by itself: at first the one that the plan of the last round gave it, then those that the leader tells
(`averaging/clocking/sample_quota.py`).

The step is full when the samples that were reported reach the target batch size B. A member in the middle of a
micro-batch then takes part with what it has; the others wait for it only if it is about to end. So the realised batch
is B and less than one micro-batch where the members are as fast as they were, and a slow machine costs the others
nothing: what it would give too late is left to members that are ready sooner.

Before it closes the group the leader asks three things. Have enough members of the last round promised this attempt?
Has one of them held a result in an earlier attempt? Then another member may have applied that, and the plan adopts it
instead of reducing anew. And whose result is it? A leader that fetched its state did not see the last round; one that
did not hold the result does not know its members: both ask a member that does. What follows from the answers is in
`votes.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from minga.averaging.clocking.sample_quota import (
    Limits,
    MemberPace,
    Registration,
    collect_s,
    share_out,
    soonest_look_s,
)
from minga.averaging.matchmaking.attempt import HERE, PROBE, VIEW, GroupAttempt, OutOfSyncError
from minga.averaging.matchmaking.votes import Vote, ballot_of, is_same
from minga.averaging.messages import (
    MAX_SAMPLES,
    Accepted,
    AskView,
    FromLeader,
    Join,
    Limit,
    Plan,
    Prepare,
    Redirect,
    SignedPlan,
    Update,
    View,
)
from minga.core.aio import Signal
from minga.core.errors import RejectedError, RemoteError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Address, PeerId
from minga.network.rpc.stream import MessageStream

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


LOOK_S = 0.2
"""Seconds between two looks at the members that are missing: in a small group all others are there before the first."""

MOST_CALLED = 8
"""Members that are called at a time."""

PROBE_PERIOD_S = 1.0


class Here(msgspec.Struct, frozen=True):
    """Are you there? And the answer."""


@loop_bound
@dataclass(eq=False)
class GroupLeader:
    """One group in the making, in an `attempt` of the peer that leads it, whose `own` registration is the first."""

    attempt: GroupAttempt
    own: Registration
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
        self._limits = Limits(self._least_limit)

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
                if (leader := self.attempt.successor()) is not None:
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
        return {self.attempt.me: self.own, **self.registrations}

    def votes(self) -> dict[PeerId, Vote]:
        """What the members promised, and held when they joined."""
        return {peer: Vote(each.ballot, each.join.accepted) for peer, each in self.everyone().items()}

    @property
    def ballot(self) -> int:
        """The number of this attempt: the highest that one of its members promised, but for those out of all bounds."""
        return ballot_of(self.votes(), max(self.attempt.position.highest_led, self.own.ballot))

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
        best = [min(max(each, self._least_limit), MAX_SAMPLES) for each in share_out(batch, paces).samples]
        return tuple(limit if registrations[peer].report.rate else 1 for peer, limit in zip(members, best, strict=True))

    # ---- inner workings

    @property
    def _least_limit(self) -> int:
        """The samples that any member may compute: 1 where a micro-batch that comes too late counts in another step."""
        return int(self.attempt.contributor.facts.counts_late)

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
            if reported >= self.attempt.target_batch or _now() >= reports_count_s:
                break
        self._has_news = False

    async def _listen_to_own_trainer(self) -> None:
        while True:
            await self.attempt.contributor.changed.wait()
            self.changed.fire()

    def _heard(self) -> dict[PeerId, Registration]:
        """Those on whose samples the step counts. Who fell quiet may be gone with all that it had, so the others go on
        as if it were, and do not wait for that to be known.
        """
        return {peer: registration for peer, registration in self.everyone().items() if not registration.is_quiet}

    def _refresh(self) -> None:
        self.attempt.batch.learn(self.attempt.step, self.everyone().values())
        self._hear_own()

    def _hear_own(self) -> None:
        self.own.report, self.own.reported_at_s = self.attempt.contributor.report(), _now()

    def _samples(self) -> int:
        return sum(registration.report.samples for registration in self._heard().values())

    def _is_full(self) -> bool:
        """Whether there are samples enough; none are needed for a result that may be committed already."""
        self._refresh()
        return self._is_in_doubt() or self._samples() >= self.attempt.target_batch

    def _is_in_doubt(self) -> bool:
        if all(registration.join.accepted is None for registration in self.everyone().values()):
            return False  # asked with each report of a member
        return self.attempt.position.newest_held(self.votes(), self.voters()) is not None

    async def _direct(self) -> None:
        """Tell the members where to stop, once those are here that are about to come: all limits count on them."""
        if _now() < self._begun_s + JOIN_GRACE_S and self.attempt.expected() - self.everyone().keys():
            return
        heard = self._heard()
        limits = self._limits.better(self.attempt.target_batch, heard, self._begun_s)
        for peer, samples in limits.items():
            heard[peer].order(samples, _now())
            if heard[peer] is self.own:
                self.attempt.contributor.limit(samples)
        await asyncio.gather(*(self._tell(heard[peer], Limit(samples)) for peer, samples in limits.items()))

    async def _everyone_present(self) -> bool:
        """Wait a little for members of the last round that live but have not joined; False if the step emptied, or if
        the promises of all show that a result which one of them held was not committed.
        """
        deadline = _now() + JOIN_GRACE_S
        while (missing := self.attempt.expected() - self.everyone().keys()) and _now() < deadline:
            if missing.intersection(self.attempt.at_work()):
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
            if self.attempt.successor() is not None:
                return False
            await self.changed.wait(CLOSE_CHECK_S)
            await self._ask_for_promises()
        else:
            await self._hold_for_newcomers(self._full_s)
        await self._hear_from_everybody()
        return self._may_close() and self._is_full()

    def _may_close(self) -> bool:
        return self.attempt.may_close(self.votes(), self.voters())

    async def _ask_for_promises(self) -> None:
        """Ask members that promised a lower number for this attempt's, and give them a moment to answer."""
        ballot, everyone = self.ballot, self.everyone()
        self.own.ballot = self.attempt.promise(self.attempt.me, ballot)
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
                "the others applied another result than this peer", code=RefusalCode.DIVERGED, round=self.attempt.step
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
        step_s, since_s = full_s - self._begun_s + self.attempt.batch.last_round_s, _now() - self._held_s
        until: dict[PeerId, float] = {}
        most_s = 0.0
        while True:
            syncing, self._held_s = self.attempt.swarm_view.syncing(self.attempt.step), _now() - since_s
            patience = self.attempt.patience(step_s, self.everyone())
            most_s = max(most_s, patience.hold_s(syncing, _now() - full_s))
            if self._held_s < most_s:
                until.update(dict.fromkeys(patience.waited_for(syncing), _now() + JOIN_GRACE_S))
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

    # ---- what it asks others meanwhile

    async def learn_view(self) -> None:
        """Where this leader fetched its state, and so missed the last round: ask the members that took part in it."""
        attempt = self.attempt
        attempt.viewless = set()
        while not attempt.position.view:
            for peer in sorted(self.voters() - attempt.viewless - {attempt.me}):
                try:
                    view = await attempt.node.call(peer, VIEW, AskView(attempt.step), View)
                    attempt.position = attempt.position.with_view(view.members)
                    break
                except RemoteError:
                    attempt.viewless.add(peer)
            await self.changed.wait(CLOSE_CHECK_S)

    async def makers_of(self, result: Accepted, plan: Plan, votes: Mapping[PeerId, Vote]) -> tuple[str, ...]:
        """The members of the round that made a result, as one of its holders in the plan names them. They may have
        decided the step, and the orders by which they did are known here from now on.

        Raises `RejectedError` if no holder tells.
        """
        attempt = self.attempt
        for peer in (peer for peer in plan.ids if is_same(votes[peer].accepted, result)):
            members: tuple[str, ...] = attempt.position.succession
            if peer != attempt.me:
                try:
                    question = AskView(attempt.step, result.round_id)
                    members = (await attempt.node.call(peer, VIEW, question, View)).members
                except RemoteError:
                    continue
            if attempt.position.has_decided({PeerId(member) for member in members}):
                await attempt.settings.orders.obtain(result.orders, peer, attempt.step)
                return members
        raise RejectedError("no holder tells whose result it has", code=RefusalCode.STAND_BY)

    async def suspect_the_silent(self) -> None:
        """Call the members that are missing, now and every `LOOK_S`, each once; suspect those without signs of life.

        Between two rounds nothing need pass between a leader and a member. So a leader cannot tell a member that still
        applies the last result from one that stopped right after it, and the board may take seconds longer than a
        stream to tell. A living one answers, or at least gives signs of life; a silent one is suspected, as a silent
        leader is, and the step does not wait for it.
        """
        called: set[PeerId] = set()

        async def call(peer: PeerId) -> None:
            try:
                await self.attempt.node.call(peer, HERE, Here(), Here)
            except SilentError:
                self.attempt.suspects.add(peer)
            except RemoteError:
                pass  # it refuses, as one does that lacks the method, or it is not connected: that tells nothing

        while True:
            if fresh := sorted(self.attempt.expected() - self.everyone().keys() - called)[:MOST_CALLED]:
                called.update(fresh)
                await asyncio.gather(*map(call, fresh))
            await asyncio.sleep(LOOK_S)

    async def probe_other_leaders(self) -> None:
        """Look for groups of this step that formed without us; the smaller one joins the larger."""
        attempt, node = self.attempt, self.attempt.node
        while True:
            await asyncio.sleep(PROBE_PERIOD_S)
            for peer in attempt.strangers(self.everyone())[:3]:
                with contextlib.suppress(RemoteError):
                    found = await node.call(peer, PROBE, attempt.join(seats=len(self.registrations)), Redirect)
                    leader = found.leader.peer_id
                    if leader not in (peer, attempt.me):
                        found = await node.call(leader, PROBE, attempt.join(seats=len(self.registrations)), Redirect)
                        leader = found.leader.peer_id
                    if leader != attempt.me and attempt.may_lead_us(leader):
                        self.give_way_to(found.leader)

    def give_way_to(self, leader: Address) -> None:
        """Another peer leads a larger group of this step."""
        self.attempt.merge_into = leader
        self.look_again()

    # ---- messages to members

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
