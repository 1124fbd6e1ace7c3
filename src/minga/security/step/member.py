"""A member of a secure run: takes one step after the other with the others, and looks into what they did.

    draw validators and batches from the last coin ─▶ compute (or validate) ─▶ attempts, until one passes all checks
        ▲                                                                                          │
        └──── ban whom most found guilty ◀── apply ◀───────────────────────────────────────────────┘

A validator gives up one step of training, computes what its target sent in the step before, and says in its next
commitment whether that was right. Everybody else then looks into an accusation, too, and says so in the commitment
after that; most decide whether the accused or the accuser goes. All bans take effect between two attempts or two
steps, from words that all members heard alike, so all have the same list of members.

A peer that is not on that list, or not yet, follows the members (`observer.py`), and as a candidate commits itself to a
gradient, too (`security/protocol/members.py`). All that differs between the two is in `take_step`. `Joiner` brings a
peer into the run.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from minga.core.aio import racing
from minga.core.buffer_pool import BufferPool, Bytes
from minga.core.errors import RemoteError, StateMismatchError
from minga.core.events.security import SecureStepFollowed, SecureStepTaken
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.evidence import Entered, Transcript
from minga.security.accountability.log import EvidenceLog, MembershipChanges
from minga.security.accountability.rulings import judge
from minga.security.messaging.past_steps import PastStep, PastSteps
from minga.security.messaging.spread import Deliveries, StatementGossip
from minga.security.messaging.voting import ContradictionError, OutvotedError, ReliableBroadcast
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.behaviour import KEPT_STEPS, Behaviour, Seeds, TrainingBackend
from minga.security.protocol.members import Ban, Members
from minga.security.protocol.protocol_state import ProtocolState, StepProgress
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.protocol.statements import (
    MAX_ACCUSATIONS,
    Accusation,
    Commit,
    Judgement,
    Phase,
    Slot,
    StateClaim,
    Statement,
    read,
)
from minga.security.protocol.statements import state as sign
from minga.security.protocol.step_math import StepMath
from minga.security.randomness.public_batch import data_seed
from minga.security.rechecking.candidates import CandidateRegister
from minga.security.rechecking.recheck import Recheck
from minga.security.step.attempt import Attempt, AttemptFailed, AttemptHistory
from minga.security.step.observer import Discovery, Observer, be_overtaken


class ExcludedError(RemoteError):
    """This peer is no member any more: it was away, was suspended, or (`BannedError`) was banned."""


class BannedError(ExcludedError):
    """This peer can never come back."""

    @classmethod
    def of(cls, ban: Ban) -> BannedError:
        """What to tell whom it concerns."""
        why = f"the members banned this peer: {ban.reason.words}. This key cannot come back; if it was an accident, "
        return cls(
            f"{why}join with another key (--identity NEWFILE), which begins on probation",
            round=ban.step,
            phase="banned",
        )


@dataclass(frozen=True)
class MemberSetup:
    """What one peer takes part with: its node and key, its training (`work`), the settings of the run, what it does of
    its own accord, where it keeps why others left the list of members, and where its secrets come from.
    """

    node: Node
    identity: Identity
    work: TrainingBackend
    settings: SecureSettings = field(default_factory=SecureSettings)
    behaviour: Behaviour = field(default_factory=Behaviour)
    evidence: EvidenceLog = field(default_factory=EvidenceLog)
    entropy: Callable[[int], bytes] = secrets.token_bytes


@loop_bound
class SecureMember:
    """One peer of a run whose members stand at `standing`, a member or not; its training has the state of that step."""

    def __init__(self, setup: MemberSetup, standing: ProtocolState) -> None:
        node, identity, work = setup.node, setup.identity, setup.work
        self._setup, self._node, self._identity, self._work = setup, node, identity, work
        self._settings, self._behaviour, self.evidence = setup.settings, setup.behaviour, setup.evidence
        self._rules = Rules.of(work.layout, self._settings)
        self._progress = StepProgress(standing)
        self._math = StepMath(self._settings)
        self._gossip = StatementGossip(node, identity, self._is_expected, self._may_speak, self._is_known)
        self._gossip.on_statement = self._note
        self._attempts, self._pool = AttemptHistory(self._progress), BufferPool()
        self._deliveries = Deliveries(node, self._attempts.find)
        self._coins: dict[int, bytes] = {}
        self._register = CandidateRegister(node, self._gossip, work.layout, self._progress, self._settings)
        samples, patience = self._register.samples, self._settings.patience
        self._observer = Observer(node, self._gossip, work, self._behaviour, samples, patience)
        self._past_steps = PastSteps(node)
        self._changes = MembershipChanges(node, identity, self._progress, self.evidence)
        self._recheck = Recheck(
            work,
            self._math,
            self._deliveries,
            self._register,
            self._behaviour,
            self._attempts.passed,
            self._coins,
            standing.step,
        )
        self._state: bytes | None = None
        """The digest of the present state."""
        self._said: Statement | None = None
        """Where this peer said that it stands, if it is a member."""
        self._found: tuple[Accusation, ...] = ()
        self._judgements: tuple[Judgement, ...] = ()
        self._leaves = False
        self._is_free = asyncio.Event()
        """Set while the others wait for no word of this peer: it is in no attempt, nor about to apply one."""
        self._is_free.set()

    @property
    def step(self) -> int:
        """Steps that were taken so far."""
        return self._progress.step

    @property
    def membership(self) -> Members:
        """The members, the candidates, and the banned peers."""
        return self._progress.membership

    @property
    def is_member(self) -> bool:
        """Whether this peer has a say."""
        return self._node.peer_id in self.membership

    async def take_step(self) -> None:
        """Take the next step: as a member together with the others, else after them.

        Raises `OutvotedError` if most of them are somewhere else, `BannedError` or `ExcludedError` if they excluded
        this peer, and other `RemoteError` if too many of them cannot be reached.
        """
        if self._state is None:
            await self._stand(await self._work.digest(), {})
        ban = self.membership.bans.get(self._node.peer_id)
        if ban is not None and ban.until is None:
            raise BannedError.of(ban)
        try:
            await (self._take_part() if self.is_member else self._follow())
        except BaseException:  # who goes on after this enters anew
            self._attempts.close()
            self._is_free.set()
            raise

    async def settle(self, limit_s: float) -> bool:
        """After the last step of a run, on which no commitments follow that would show who stands elsewhere: wait until
        most members say where they stand. Whether they came to another state than this one, which has theirs then.

        Raises `OutvotedError` if most went on without this member, or stand here and there, `SilentError` if most say
        nothing in `limit_s` seconds, and another `RemoteError` if their state cannot be had.
        """
        if self._said is None:  # who is no member has its state from most of them
            return False
        own = read(self._said, StateClaim)
        place, signers = await self._observer.place_of_most(self._said, self.membership.members, limit_s)
        if place.standing != own.standing:
            raise OutvotedError("most others went on without this peer", round=self.step)
        if place.state != own.state:
            await _adopt(self._work, self.step, place, signers)
            self._state = place.state
        return place.state != own.state

    async def see_off(self) -> None:
        """Before this peer leaves: end the attempt under way, and say goodbye instead of committing to another one. Who
        is silent after it has committed itself is suspended; who says goodbye is just away, and makes no majority.
        """
        self._leaves = True
        await self._is_free.wait()
        if self.is_member and self._state is not None:
            last = self._attempts.under_way(self.step)
            slot = Slot(self.step, 0 if last is None else last.attempt + 1, Phase.COMMIT)
            place = self._state, self._progress.standing.digest, self._rules.digest
            self._gossip.say(slot, Commit(*place, None, leaves=True), self.membership.members)
        await self._gossip.told()

    # ---- as an observer

    async def _follow(self) -> None:
        before = self._progress.standing
        followed = await self._observer.take_step(self._progress)
        self._node.events.emit(SecureStepFollowed(step=self.step, members=len(self.membership.members)))
        self._changes.tell_candidates(before)
        self._recheck.first = self.step
        await self._stand(followed.state, followed.values)
        if self._said is not None:  # a member: what it sees from now on it can show
            signed = await self._observer.signed_by_most(self._said, self.membership.members)
            await self._changes.write_down([Entered(self._progress.standing, signed)])

    # ---- as a member

    async def _take_part(self) -> None:
        drawn = self._register.draw()
        target, gradient = drawn.get(self._node.peer_id), None
        if target is None:
            gradient = await self._gradient()
        else:
            self._found += await self._recheck.validate(target, self.step, self.membership.candidates)
        overtaken = be_overtaken(self._node, self._progress, self._settings.patience.longest_s)
        async with racing((self._try(gradient, frozenset(drawn)), overtaken)) as ends:
            record = await next(ends)
        await self._close(record)

    async def _gradient(self) -> torch.Tensor:
        coin = self._coins[self.step - 1]
        seeds = Seeds(self._node.peer_id, {peer: data_seed(coin, peer) for peer in self.membership.members})
        return await self._behaviour.gradient(self._work, self.step, seeds)

    async def _try(self, gradient: torch.Tensor | None, validators: frozenset[PeerId]) -> AttemptRecord:
        """Try until an attempt passes."""
        found = self._behaviour.accusations(self._found)[:MAX_ACCUSATIONS]
        judgements, heard, attempt = self._judgements, self._register.named(), 0
        while True:
            self._is_free.set()
            present = validators.intersection(self.membership.members)
            if self._node.peer_id in present and len(present) == len(self.membership.members):  # all who train left
                present, gradient = frozenset(), gradient if gradient is not None else await self._gradient()
            if self._leaves:
                await asyncio.Event().wait()
            liars = tuple(peer for peer in sorted(self.membership.candidates) if peer in self._gossip.proofs)
            standing = self._progress.standing
            place = self._state or b"", standing.digest, self._rules.digest
            commit = Commit(*place, None, found, judgements, liars, heard, self._unheard())
            try:
                self._is_free.clear()
                return await self._attempt(attempt, present).run(commit, gradient)
            except AttemptFailed as failure:
                self._changes.leave_out(failure.gone)
                await self._changes.write_down(
                    Transcript.failed(standing, failure.record, part) for part in failure.parts or (None,)
                )
            except ContradictionError:
                await asyncio.sleep(self._settings.patience.proof_s)
            attempt += 1

    def _unheard(self) -> tuple[PeerId, ...]:
        last = self._attempts.passed.get(self.step - 1)
        return tuple(peer for peer in last.unheard if peer in self.membership) if last else ()

    def _attempt(self, number: int, validators: frozenset[PeerId]) -> Attempt:
        self._require_membership()
        members = self.membership.members
        division = EqualParts.equal(self._work.layout, len(members))
        terms = Terms(self._node.run_id, self.step, number, members, validators, division, self._rules)
        record = AttemptRecord(terms, PartStore(division.part_bytes, division.value_bytes, self._pool))
        broadcast = ReliableBroadcast(self._gossip, members, self._node.peer_id, self._settings.patience)
        self._attempts.begin(record, broadcast)
        return Attempt(
            record,
            self._gossip,
            broadcast,
            self._deliveries,
            self._math,
            self._behaviour,
            self._node.peer_id,
            self._setup.entropy,
        )

    def _require_membership(self) -> None:
        if self._node.peer_id not in self.membership:
            ban = self.membership.bans.get(self._node.peer_id)
            if ban is not None and ban.until is None:
                raise BannedError.of(ban)
            why = "this peer was away for too long" if ban is None else f"the members suspended this peer: {ban.why}"
            raise ExcludedError(why, round=self.step)

    async def _close(self, record: AttemptRecord) -> None:
        """The attempt passed: apply, hear the judges, and look into what is new."""
        step, progress, before = self.step, self._progress, self._progress.standing
        await self._work.apply(
            step, await asyncio.to_thread(lambda: progress.bound.shortened(record.vector, record.about_squares))
        )
        self._math.remember(record)
        self._attempts.passed[step] = record
        self._node.events.emit(
            SecureStepTaken(step=step + 1, attempt=record.terms.attempt, members=len(self.membership.members))
        )
        has_banned = self._changes.leave_out(judge(record, before))
        admitted = self._register.review(record, self._rules.probation_steps)
        if has_banned or admitted:
            await self._changes.write_down([Transcript.passed(before, record, admitted)])
        then, counts = before.membership.candidates, self._register.counts
        progress.take_outcome(record, lambda accuser, accusation: counts(accuser, accusation, record, then))
        self._changes.tell_candidates(before)
        await self._stand(await self._work.digest(), record.store.values)
        self._is_free.set()
        self._attempts.forget_before(self.step - KEPT_STEPS + 1)
        self._pool.trim()
        self._judgements = await self._recheck.judge(progress.charges, record, then)
        self._found = await self._recheck.false_claims(record, record.terms.members.index(self._node.peer_id))

    async def _stand(self, state: bytes, values: Mapping[int, Bytes]) -> None:
        """This peer has come to the beginning of a step, by the aggregates `values` of the last one."""
        standing, self._state, self._said = self._progress.standing, state, None
        if self.is_member:
            slot, place = Slot(self.step, 0, Phase.STANDING), StateClaim(standing.digest, state)
            self._said = sign(self._identity, self._node.run_id, slot, self._behaviour.stands(place))
        self._past_steps.keep(PastStep(standing, dict(values), self._said))
        self._math.history = self._progress.history
        self._coins[self.step - 1] = self._progress.coin
        self._gossip.forget_before(self.step - KEPT_STEPS)
        self._gossip.remind(self.membership.members)
        self._register.forget_before(self.step - KEPT_STEPS)
        for old in [old for old in self._coins if old < self.step - KEPT_STEPS - 1]:
            del self._coins[old]

    # ---- what others ask

    def _is_expected(self, slot: Slot) -> bool:
        if slot.phase is Phase.CANDIDACY:
            return slot.attempt == 0 and self.step - KEPT_STEPS <= slot.step <= self.step + 1
        return self._attempts.is_expected(slot)

    def _may_speak(self, peer: PeerId, slot: Slot) -> bool:
        if slot.phase is Phase.CANDIDACY:
            return self._register.heard.accepts(peer, slot, self.membership, self._progress.coin)
        return peer in self.membership

    def _is_known(self, peer: PeerId) -> bool:
        return peer in self.membership or peer in self.membership.candidates

    def _note(self, statement: Statement) -> None:
        if statement.slot.phase is Phase.CANDIDACY:
            if not self._has_revealed(statement.slot.step + 1):
                self._register.heard.hear(statement)
            self._register.heard.make_room(statement.slot, self.membership, self._progress.coin)
        else:
            self._attempts.answer(statement)

    def _has_revealed(self, step: int) -> bool:
        """Whether this member gave away its secret of the coin of a step, so that others may know that."""
        if self.step > step:
            return True
        reached = self._attempts.under_way(step)
        if reached is None:
            return False
        return self._node.peer_id in self._gossip.slots.of(Slot(step, reached.attempt, Phase.REVEAL))


# ---- Joining: how a peer that was not there, or is no member any more, gets into a secure run.
#
#     ask where the members stand (`observer.py`) ─▶ adopt that state ─▶ follow ─▶ candidate ─▶ member
#
# Everything after the adoption is `SecureMember.take_step`. A peer that is excluded without blame, or finds itself
# where most are not, enters again.


@loop_bound
class Joiner:
    """A peer that was told of some members of a run (`genesis`: the founders, or better those of late)."""

    def __init__(self, setup: MemberSetup, genesis: Iterable[PeerId]) -> None:
        self._setup, self._genesis = setup, frozenset(genesis)
        self.is_vouched_for = False
        """Whether more than half of those whom it was told of signed where it entered."""

    async def enter(self) -> SecureMember:
        """Come to where the members are; by taking steps from there on it becomes one.

        Raises `BannedError` if they banned this peer, and another `RemoteError` if most of them cannot be found, or
        their state cannot be had any more.
        """
        node, work = self._setup.node, self._setup.work
        discovery = Discovery(node, self._genesis)
        standing, place, signers = await discovery.find(self._setup.settings.patience.longest_s)
        self.is_vouched_for = 2 * len(self._genesis.intersection(signers)) > len(self._genesis)
        ban = standing.membership.bans.get(node.peer_id)
        if ban is not None and ban.until is None:
            raise BannedError.of(ban)
        await _adopt(work, standing.step, place, signers)
        return SecureMember(self._setup, standing)


async def _adopt(work: TrainingBackend, step: int, place: StateClaim, signers: Sequence[PeerId]) -> None:
    await work.adopt(step, place.state, signers)
    if await work.digest() != place.state:
        raise StateMismatchError("the state that came is not that of most members", round=step)
