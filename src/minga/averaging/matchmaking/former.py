"""Group formation: from "step 7 begins" to a signed plan that every member has.

Theory of operation. The members of the last round, their *view*, are known to all of them alike, so `ranking` gives
all of them the same order of possible leaders for the next step without a word being said. Each peer joins the first
of them that it can hear, at the very start of the step, and stays on that stream until the plan comes over it:

    member                                    leader
      ── Join{step, report, address} ─────────▶   takes a registration in the `GroupLeader`
      ── Update{report} after each micro-batch ▶
      ◀───────────────────── Limit{samples} ─     where to stop, if that is not what the last plan said
      ── Update{report: parked} ──────────────▶
      ◀─────────────────── SignedPlan ──────      the step is full

A peer that was asked but does not lead answers `Redirect`. A leader that falls silent is suspected and the next in
rank is asked; the join names the suspects, so that the next one knows why it is asked. Newcomers, who have no view,
first ask the peers of that step whom they follow. Two leaders of one step (two groups started at once, or a network
was split and healed) find each other through the board: the one with fewer members redirects them to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.clocking.standby import Standby
from minga.averaging.election import has_quorum
from minga.averaging.group import Contributor, GroupSettings, SwarmView
from minga.averaging.matchmaking.follower import JOIN, PROBE, ask_around, follow
from minga.averaging.matchmaking.leader import GroupLeader, OutOfSyncError, Surroundings
from minga.averaging.matchmaking.succession import Acceptor, QuorumRule, Succession
from minga.averaging.matchmaking.view import MembershipView, Suspects
from minga.averaging.messages import MAX_PLAN_NOTE_BYTES, Accepted, Join, Plan, Redirect, Report
from minga.averaging.planning.plan_maker import Divide, PlanMaker
from minga.averaging.planning.signed_plan import sign_plan
from minga.averaging.solver.planner import divide
from minga.core.aio import Signal
from minga.core.errors import ProtocolError, RejectedError, RemoteError, SilentError
from minga.core.events.averaging import GroupLeaderLost
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MAX_MESSAGE_BYTES, MessageStream

# ---- Members of the last round that have not joined this step: are they late, or silent?
#
# Theory of operation. Between two rounds nothing need pass between a leader and a member. So a leader cannot tell a
# member that still applies the last result from one that stopped right after it, and the board may take seconds longer
# than a stream to tell. Therefore the leader calls those that are missing. A living one answers, or at least gives
# signs of life; a silent one is suspected, as a silent leader is, and the step does not wait for it.


HERE: Final = "group.here"

LOOK_S: Final = 0.2
"""Seconds between two looks at the members that are missing: in a small group all others are there before the first."""

MOST_CALLED: Final = 8
"""Members that are called at a time."""


class Here(msgspec.Struct, frozen=True):
    """Are you there? And the answer."""


async def serve_here(_: PeerId, stream: MessageStream) -> None:
    """Answer a call."""
    await stream.receive(Here)
    await stream.send(Here())


async def suspect_the_silent(
    node: Node, missing: Callable[[], Collection[PeerId]], suspects: Callable[[], Suspects]
) -> None:
    """Call those that are `missing`, now and every `LOOK_S`, each once; suspect those without signs of life."""
    called: set[PeerId] = set()

    async def call(peer: PeerId) -> None:
        try:
            await node.call(peer, HERE, Here(), Here)
        except SilentError:
            suspects().add(peer)
        except RemoteError:
            pass  # it refuses, as one that does not know the question does, or it is not connected: that tells nothing

    while True:
        if fresh := sorted(set(missing()) - called)[:MOST_CALLED]:
            called.update(fresh)
            await asyncio.gather(*map(call, fresh))
        await asyncio.sleep(LOOK_S)


# ---- One peer, from step to step: it leads or follows.


AHEAD_PATIENCE_S = 5.0
"""Seconds that a join for a later step waits for this peer to get there before it is refused."""
STAND_BY_S = 0.25
PROBE_PERIOD_S = 1.0
PREPARE_PERIOD_S = 1.0
ENVELOPE_BYTES = 256
"""What a signed plan takes besides the plan itself and its note, at most."""
PATIENT_TRIES = 20
"""A peer that should lead and neither takes us nor refuses us for good, so many times in a step, is no leader."""
MOST_USUAL_S = 600.0
"""A newcomer does not reckon with longer steps, however slow it is itself: its leader may be a liar."""
_NO_LEADER_FOR_US = (RefusalCode.AHEAD, RefusalCode.LAYOUT, RefusalCode.FULL, RefusalCode.UNFAIR)
"""Refusals after which this peer looks for another leader."""


@loop_bound
class GroupFormation:
    """Forms the group of one step after the other for one peer."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        settings: GroupSettings,
        swarm_view: SwarmView,
        contributor: Contributor,
        divide: Divide = divide,
    ) -> None:
        self.previous = ""
        """Fingerprint of the reduced vector that led to the present state; empty if that came in another way."""
        self.history = ""
        """Stands for all rounds that led to the present state: 32 hexadecimal digits."""
        self.batch = BatchSize(settings)
        """The target batch size, as far as this peer knows it."""
        self.epoch = 0
        """That of the organisers' last regroup which this peer followed."""
        self._node, self._identity, self._settings = node, identity, settings
        self._swarm_view, self._contributor = swarm_view, contributor
        self._step = -1
        self._led_group: GroupLeader | None = None
        self._following: PeerId | None = None
        self._membership = MembershipView(node, settings, swarm_view)
        self._changed = Signal()
        self._merge_into: Address | None = None
        self._standby = Standby(node, contributor)
        self._plan_maker = PlanMaker(node, settings, swarm_view, divide)
        self._acceptor = Acceptor(node.peer_id)
        quorum = QuorumRule(node, swarm_view, settings)
        self._succession = Succession(node, self._membership, quorum, self._acceptor, settings.orders.obtain)
        node.serve(JOIN, self._serve_join)
        node.serve(PROBE, self._serve_probe)
        node.serve(HERE, serve_here)

    @property
    def view(self) -> tuple[PeerId, ...]:
        """Members of the last round that this peer took part in, its leader first; empty before the first."""
        return self._membership.view

    def others_are_past(self, step: int) -> bool:
        """Whether most of the other members of the view are past `step`."""
        return self._membership.are_past(step)

    def come_back(self, others: Collection[PeerId]) -> None:
        """The state was taken over from `others`; see `MembershipView.come_back`."""
        self._membership.come_back(others)
        self.previous = ""
        self.batch.forget()

    def regroup(self, epoch: int, members: Sequence[PeerId], *, is_one: bool) -> None:
        """From now on go only with peers of this epoch: the `members` that the organisers named decide the next step.
        `is_one`: this peer is one of them, and has the state with which they go on.
        """
        self.epoch, self.previous = epoch, ""
        self._membership.regroup(members, is_one=is_one)
        if is_one:
            self._acceptor.regroup()
        self._changed.fire()

    def commit(self, plan: Plan) -> None:
        """The round of this plan is committed."""
        self._membership.commit(plan)
        self._acceptor.commit()

    def give_up(self, plan: Plan, term: int, fingerprint: str) -> None:
        """The round of this plan was given up after this peer held its result, in `term`, which may be committed."""
        leader = plan.members[0].peer_id
        held = Accepted(plan.ballot, leader, term, plan.result_id, fingerprint, plan.orders, plan.rates)
        self._acceptor.hold(held, plan.succession)

    async def form(self, step: int, avoid: Collection[PeerId] = ()) -> Plan:
        """Find the group of `step` and return its plan; `avoid` went silent in the last round and is not asked first.

        Raises `OutOfSyncError` if the swarm is ahead, and `MinorityError` if the view's majority is out of sight and
        the run spec says to stop then.
        """
        self._step = self.batch.step = step
        self._membership.begin_step(step, avoid)
        self._succession.begin_step(step)
        self._standby.begin_step(step)
        self._plan_maker.expect(step, self.batch.present)
        self._changed.fire()
        invited, tries = None, Counter[PeerId]()
        try:
            if not self.view:
                invited = await ask_around(self._node, self._membership.guides(), self._join_message(members=-1))
            while True:
                if self._membership.is_behind():
                    raise OutOfSyncError("the swarm went on without us", code=RefusalCode.BEHIND, round=step)
                leader, invited = invited, None
                try:
                    leader = leader or self._membership.choose_leader()
                    self._try(leader, tries)
                    outcome = await (self._lead() if leader is None else self._follow(leader))
                except OutOfSyncError:
                    raise
                except RejectedError as error:  # it cannot take us right now: ask again a little later
                    if error.code in _NO_LEADER_FOR_US and error.peer:
                        self._membership.suspects.add(PeerId(error.peer))
                    await self._changed.wait(STAND_BY_S)
                    continue
                except RemoteError as error:
                    peer = PeerId(error.peer) if error.peer else leader.peer_id if leader else self._node.peer_id
                    self._membership.suspects.add(peer)
                    self._node.events.emit(GroupLeaderLost(peer=peer, step=step, why=error.message))
                    continue
                if isinstance(outcome, Plan):
                    self._plan_maker.remember(outcome)
                    me = [member.peer_id for member in outcome.members].index(self._node.peer_id)
                    self._standby.ask(rest=me in outcome.resting)
                    self._membership.take_part(outcome)
                    return outcome
                invited = outcome
        finally:
            self._led_group, self._following = None, None
            self._standby.end()
            self._changed.fire()

    def _try(self, leader: Address | None, tries: Counter[PeerId]) -> None:
        """Count that a leader is asked; raises `SilentError` if that was in vain too often."""
        if leader is not None:
            tries[leader.peer_id] += 1
            if tries[leader.peer_id] > PATIENT_TRIES:
                tries[leader.peer_id] = 0
                raise SilentError("it neither leads nor says who does", peer=leader.peer_id)

    def _is_due(self, report: Report) -> bool:
        """Whether a leader should have closed its group: by one's own samples alone, or because one waits parked.

        Who has to wait with nothing, because its micro-batches are too long for the step, is not in a hurry.
        """
        if report.samples > 2 * self.batch.present + report.micro_batch:
            return True
        waits = report.parked and (report.samples > 0 or self._standby.is_far_longer)
        return waits and has_quorum(set(self._swarm_view.alive()), self._membership.everyone)

    def _usual_s(self, report: Report) -> float:
        """How many seconds the step takes if all others that are in it compute like this peer; 0 if it cannot tell, or
        need not, since it is one of those that saw the step begin.
        """
        if self.view or not report.rate:
            return 0.0
        members = 1 + len(self._swarm_view.at(self._step))
        return min(self.batch.present / (members * report.rate), MOST_USUAL_S)

    # ---- following

    async def _follow(self, leader: Address) -> Plan | Address:
        self._following = leader.peer_id
        try:
            join, numel = self._join_message(leader.peer_id), self._settings.vectors(self._step).numel
            due, behind = self._is_due, self._membership.is_behind
            outcome = await follow(
                self._node, self._contributor, self._acceptor, leader, join, numel, due, self._usual_s, behind
            )
        finally:
            self._following = None
        if not isinstance(outcome, Address):
            plan = outcome.plan
            await self._settings.orders.obtain(plan.orders, leader.peer_id, self._step)
            self.batch.check(plan)
            self._plan_maker.check(plan, outcome.said)
            self._succession.enter(plan)
            self._settings.notes.take(plan, outcome.note)
            return plan
        if outcome.peer_id in (*self._membership.suspects.now(), self._node.peer_id):
            why = f"redirected to {outcome.peer_id[:10]}, which cannot lead"
            raise RejectedError(why, code=RefusalCode.STAND_BY, peer=leader.peer_id)
        return outcome

    def _join_message(self, leader: PeerId | None = None, members: int = 0) -> Join:
        """A join of `leader`, which is a promise to it, or only a question."""
        rates = self._swarm_view.rates()
        return Join(
            step=self._step,
            layout=self._settings.vectors(self._step).layout,
            address=self._node.address,
            aggregates=self._settings.aggregates,
            computes=self._settings.computes,
            upload=rates.upload,
            download=rates.download,
            report=self._contributor.report(),
            upload_shown=rates.upload_shown,
            download_shown=rates.download_shown,
            suspects=tuple(sorted(self._membership.suspects.now()))[:64],
            seats=members,
            previous=self.previous,
            batch=self.batch.told,
            ballot=self._acceptor.promise(leader) if leader is not None else 0,
            accepted=self._acceptor.accepted,
            epoch=self.epoch,
            history=self.history,
            note=self._settings.notes.for_leader(self._step) if leader is not None else b"",
        )

    # ---- leading

    async def _lead(self) -> Plan | Address:
        me = self._node.peer_id
        own = Registration(self._join_message(me), self._contributor.report(), asyncio.get_running_loop().time())
        around = Surroundings(
            self._membership.expected,
            lambda: self._swarm_view.syncing(self._step),
            self._succession.may_close,
            lambda ballot: self._acceptor.raise_to(me, ballot),
            self._succession.is_in_doubt,
            self._abdicate,
            lambda: self._acceptor.highest_led,
            self._membership.at_work,
        )
        group = GroupLeader(
            self._step, me, own, self._contributor, self.batch, around, int(self._settings.counts_late())
        )
        self._led_group, self._merge_into = group, None
        self._changed.fire()
        loop = asyncio.get_running_loop()
        aside = [loop.create_task(self._look_around(group))]
        if not self.view:
            aside.append(loop.create_task(self._succession.learn_view(group)))
        try:
            leader = await group.run()
            if leader is not None:
                return leader
            registrations, voters, ballot = group.everyone(), group.voters(), group.ballot
            self._membership.gave_up_waiting(registrations)
            plan = await self._plan_maker.plan(self._step, registrations)
            every = self._settings.averages_every(self._step)
            due = self._settings.orders.due(self._step)
            plan = msgspec.structs.replace(plan, ballot=ballot, orders=due, averages_every=every)
            plan = await self._succession.decide(plan, registrations, voters)
            next_batch = self.batch.next(registrations.values(), plan.orders)
            limits = group.limits_of_the_next(plan.ids, registrations, next_batch)
            plan = msgspec.structs.replace(plan, limits=limits, next_batch=next_batch)
            self._succession.enter(plan)
            signed = sign_plan(plan, self._identity)
            note = self._note_with(plan, registrations, MAX_MESSAGE_BYTES - ENVELOPE_BYTES - len(signed.plan))
            await group.send_plan(msgspec.structs.replace(signed, note=note), plan.ids)
            return plan
        except BaseException:
            await group.dismiss()
            raise
        finally:
            for task in aside:
                task.cancel()
            self._led_group = None
            self._changed.fire()

    def _note_with(self, plan: Plan, registrations: Mapping[PeerId, Registration], room_bytes: int) -> bytes:
        """What goes to all members with the plan, if the message has room for it."""
        notes = self._settings.notes
        note = notes.with_plan(plan, {peer: registrations[peer].join.note for peer in plan.ids})
        note = note if len(note) <= min(room_bytes, MAX_PLAN_NOTE_BYTES) else b""
        notes.take(plan, note)
        return note

    async def _look_around(self, group: GroupLeader) -> None:
        """What a leader does from time to time while the step is under way; nothing of it in a short step."""
        await asyncio.sleep(LOOK_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._suspect_the_silent(group))
            tasks.create_task(self._prepare(group))
            tasks.create_task(self._probe_other_leaders(group))

    async def _prepare(self, group: GroupLeader) -> None:
        """Have a division at hand for the peers that are registered."""
        while True:
            await asyncio.sleep(PREPARE_PERIOD_S)
            await self._plan_maker.prepare(group.everyone())
            if not any(
                registration.goes_on or registration.report.samples for registration in group.registrations.values()
            ):
                self._standby.break_off()  # nobody else computes: those for whom it rested are gone

    async def _suspect_the_silent(self, group: GroupLeader) -> None:
        def missing() -> set[PeerId]:
            return self._membership.expected() - set(group.everyone())

        await suspect_the_silent(self._node, missing, lambda: self._membership.suspects)

    def _abdicate(self) -> Address | None:
        """Who leads instead of us, if anybody. Raises `OutOfSyncError` if most of the swarm is ahead."""
        if self._membership.is_behind():
            raise OutOfSyncError("the swarm went on without us", code=RefusalCode.BEHIND, round=self._step)
        if self._merge_into is not None and self._merge_into.peer_id not in self._membership.suspects.now():
            return self._merge_into
        # Newcomers have no view, so two of them may both lead for a moment: the worse in rank steps down.
        return None if self.view else self._membership.choose_leader()

    async def _probe_other_leaders(self, group: GroupLeader) -> None:
        """Look for groups of this step that formed without us; the smaller one joins the larger."""
        while True:
            await asyncio.sleep(PROBE_PERIOD_S)
            for peer in self._membership.strangers(group.everyone())[:3]:
                with contextlib.suppress(RemoteError):
                    found = await self._node.call(
                        peer, PROBE, self._join_message(members=len(group.registrations)), Redirect
                    )
                    if found.leader.peer_id not in (peer, self._node.peer_id):
                        leader = found.leader.peer_id
                        found = await self._node.call(
                            leader, PROBE, self._join_message(members=len(group.registrations)), Redirect
                        )
                    if found.leader.peer_id != self._node.peer_id and self._may_lead_us(found.leader.peer_id):
                        self._merge_into = found.leader
                        group.look_again()

    def _may_lead_us(self, peer: PeerId) -> bool:
        """Whether this peer's group may go to that leader: after a common round only its members lead, or a stranger
        that says to have a large group could call all others away.
        """
        return not self.view or peer in self.view

    async def _serve_probe(self, peer: PeerId, stream: MessageStream) -> None:
        join = await stream.receive(Join)
        await self._admit(peer, join)
        group = self._led_group
        if group is None or group.closed:
            leader = self._swarm_view.address(self._following) if self._following is not None else None
            if leader is None:
                raise RejectedError("not leading and not following at the moment", code=RefusalCode.STAND_BY)
            await stream.send(Redirect(leader))
        elif not self._may_lead_us(peer) or (len(group.registrations), self._node.peer_id) > (join.seats, peer):
            await stream.send(Redirect(self._node.address))
        else:
            self._merge_into = join.address
            group.look_again()
            await stream.send(Redirect(join.address))

    # ---- being asked

    async def _serve_join(self, peer: PeerId, stream: MessageStream) -> None:
        join = await stream.receive(Join)
        await self._admit(peer, join)
        group = self._led_group
        if group is not None and not group.closed:
            await group.attend(peer, join, stream)
            return
        leader = self._following
        address = self._swarm_view.address(leader) if leader is not None else None
        if leader is None or address is None or leader in join.suspects or leader == peer:
            raise RejectedError("not leading and not following at the moment", code=RefusalCode.STAND_BY)
        await stream.send(Redirect(address))
        await stream.finish()
        await stream.drain()  # it may have sent updates meanwhile

    async def _admit(self, peer: PeerId, join: Join) -> None:
        """Refuse a peer that has nothing to do with this one's groups, and wait until this one is at its step."""
        self._check_join(peer, join)
        await self._reach(join.step)
        if join.history != self.history:
            raise RejectedError("other rounds led to its state than to this peer's", code=RefusalCode.DIVERGED)

    def _check_join(self, peer: PeerId, join: Join) -> None:
        if join.layout != self._settings.vectors(join.step).layout:
            why = "its parameters have other shapes or another codec than this run's, or its rounds other vectors"
            raise RejectedError(why, code=RefusalCode.LAYOUT)
        if join.epoch != self.epoch:
            raise RejectedError(
                "the organisers regrouped the run, and one side does not know it yet", code=RefusalCode.STAND_BY
            )
        if join.address.peer_id != peer:
            raise ProtocolError("it joins with the address of another peer", peer=peer)

    async def _reach(self, step: int) -> None:
        """Wait until this peer is at `step`, for a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AHEAD_PATIENCE_S
        while self._step < step:
            if (left := deadline - loop.time()) <= 0:
                raise RejectedError(f"still at step {self._step}", code=RefusalCode.AHEAD)
            await self._changed.wait(left)
        if step < self._step:
            raise RejectedError(f"step {step} is over, this is step {self._step}", code=RefusalCode.BEHIND)
