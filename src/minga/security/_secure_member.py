"""A member of a secure run: takes one step after the other with the others, and looks into what they did.

    draw validators and batches from the last coin ─▶ compute (or validate) ─▶ attempts, until one passes all checks
        ▲                                                                                          │
        └──── ban whom most found guilty ◀── apply ◀───────────────────────────────────────────────┘

A validator gives up one step of training, computes what its target sent in the step before, and says in its next
commitment whether that was right. Everybody else then looks into an accusation, too, and says so in the commitment
after that; most decide whether the accused or the accuser goes. All bans take effect between two attempts or two
steps, from words that all members heard alike, so all have the same list of members.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping

from minga.core._errors import RemoteError
from minga.core._signal import Signal
from minga.identity._keys import Identity
from minga.network._interface import PeerId
from minga.network._node import Node
from minga.security._agreement import Agreement
from minga.security._arithmetic import Arithmetic
from minga.security._attempt import Attempt, Setback
from minga.security._conduct import Conduct, Seeds, Work
from minga.security._data_seeds import data_seed
from minga.security._delivery import Cargo, Deliveries
from minga.security._division import Division
from minga.security._draws import Validation, draw_validations, validator_count
from minga.security._inquiry import Inquiry
from minga.security._ledger import Ledger, Reason
from minga.security._mesh import Mesh
from minga.security._randomness import derive
from minga.security._record import Record, Terms
from minga.security._settings import SecureSettings
from minga.security._wire import MAX_ACCUSATIONS, Accusation, Charge, Commit, Judgement, Slot, Statement

KEPT_STEPS = 3
"""Steps that members can be asked about, and so the states that `Work` has to keep."""
EXPECT_S = 5.0
"""Seconds that whoever is ahead waits until this member gets to its attempt."""


class ExcludedError(RemoteError):
    """This peer is no member any more: it was banned, or it was away."""


class SecureMember:
    """One peer among the members of `ledger`; `conduct` is what it does of its own accord, `entropy` where its
    secrets come from.
    """

    def __init__(
        self,
        node: Node,
        identity: Identity,
        ledger: Ledger,
        work: Work,
        settings: SecureSettings | None = None,
        conduct: Conduct | None = None,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._entropy = entropy
        self.step = 0
        self.ledger = ledger
        self._node, self._work = node, work
        self._settings, self._conduct = settings or SecureSettings(), conduct or Conduct()
        self._arithmetic = Arithmetic(self._settings)
        self._mesh = Mesh(node, identity, self._is_expected, lambda peer: peer in self.ledger)
        self._mesh.on_statement = self._note
        self._deliveries = Deliveries(node, self._find)
        self._coins = {-1: derive(bytes(32), "first coin", node.run_id)}
        self._records: dict[int, Record] = {}
        """The last attempts of past steps, which passed."""
        self._current: Record | None = None
        self._agreements: deque[Agreement] = deque(maxlen=KEPT_STEPS)
        """Of the last attempts: others may still vote on their phases."""
        self._began = Signal()
        self._found: tuple[Accusation, ...] = ()
        self._judgements: tuple[Judgement, ...] = ()

    async def take_step(self) -> None:
        """Take the next step together with the others.

        Raises `MinorityError` if most of them are somewhere else, and `ExcludedError` if they excluded this peer.
        """
        self._require_membership()
        step = self.step
        validations = {v.validator: v.target for v in self._draw()}
        target, gradient = validations.get(self._node.peer_id), None
        if target is None:
            seeds = Seeds(self._node.peer_id, {p: data_seed(self._coins[step - 1], p) for p in self.ledger.members})
            gradient = await self._conduct.gradient(self._work, step, seeds)
        else:
            self._found += await self._inquiry(step - 1).validate(target)
        found = self._conduct.accusations(self._found)
        state = await self._work.digest()
        attempt = 0
        while True:
            validators = frozenset(validations).intersection(self.ledger.members)
            commit = Commit(state, self.ledger.digest, (), found[:MAX_ACCUSATIONS], self._judgements[:64])
            try:
                record = await self._attempt(attempt, validators).run(commit, gradient)
                break
            except Setback as setback:
                attempt += 1
                self._leave_out(setback)
        await self._close(record)

    # ---- one step

    def _draw(self) -> tuple[Validation, ...]:
        if not self._records:
            return ()  # nothing was done yet that could be looked at
        members = self.ledger.members
        count = validator_count(len(members), peers_per_validator=self._settings.peers_per_validator)
        return draw_validations(self._coins[self.step - 1], members, (), count)

    def _attempt(self, number: int, validators: frozenset[PeerId]) -> Attempt:
        self._require_membership()
        members = self.ledger.members
        division = Division.equal(self._work.layout, [True] * len(members))
        terms = Terms(self._node.run_id, self.step, number, members, validators, division)
        record = Record(terms, Cargo(division.part_bytes, division.value_bytes))
        agreement = Agreement(self._mesh, members, self._node.peer_id, self._settings.patience)
        self._current = record
        self._agreements.append(agreement)
        self._began.fire()
        return Attempt(
            record,
            self._mesh,
            agreement,
            self._deliveries,
            self._arithmetic,
            self._conduct,
            self._node.peer_id,
            self._entropy,
        )

    def _require_membership(self) -> None:
        if self._node.peer_id not in self.ledger:
            ban = self.ledger.bans.get(self._node.peer_id)
            why = f"the members banned this peer: {ban.reason.value}" if ban else "this peer was away for too long"
            raise ExcludedError(why, round=self.step)

    def _leave_out(self, setback: Setback) -> None:
        for peer, reason in setback.bans.items():
            self._ban(peer, reason)
        for peer in setback.away:
            self.ledger.remove(peer)
            self._node.events.emit("secure.member_away", step=self.step, peer=peer)

    async def _close(self, record: Record) -> None:
        """The attempt passed: apply, hear the judges, and look into what is new."""
        step = self.step
        await self._work.apply(step, record.vector)
        self._arithmetic.remember(record)
        self._records[step], self._coins[step] = record, record.randomness
        self._node.events.emit(
            "secure.step", step=step + 1, attempt=record.terms.attempt, members=len(self.ledger.members)
        )
        self._judge_by(record)
        self.step += 1
        self._mesh.slots.forget_before(self.step - KEPT_STEPS)
        for old in [old for old in self._records if old <= self.step - KEPT_STEPS]:
            del self._records[old]
        self._judgements = await self._look_into(record)
        self._found = await self._inquiry(step).false_claims(self._own_part(record))

    def _own_part(self, record: Record) -> int:
        return record.terms.members.index(self._node.peer_id)

    def _inquiry(self, step: int) -> Inquiry:
        return Inquiry(self._records[step], self._coins[step - 1], self._work, self._arithmetic, self._deliveries)

    # ---- accusations and judgements

    def _judge_by(self, record: Record) -> None:
        """Who was accused one step ago is judged by what most say now."""
        before = self._records.get(record.terms.step - 1)
        if before is None:
            return
        judgements = Counter(
            (judgement.accuser, judgement.accusation, judgement.guilty)
            for commit in record.commits.values()
            for judgement in set(commit.judgements)
        )
        for accuser, commit in before.commits.items():
            for accusation in commit.accusations:
                guilty, innocent = (judgements[accuser, accusation, verdict] for verdict in (True, False))
                if 2 * guilty > len(record.terms.members):
                    self._convict(accusation, before.commits)
                elif 2 * innocent > len(record.terms.members):
                    self._ban(accuser, Reason.FALSE_ACCUSATION)

    def _convict(self, accusation: Accusation, commits: Mapping[PeerId, Commit]) -> None:
        target = PeerId(accusation.target)
        if accusation.charge is Charge.GRADIENT:
            self._ban(target, Reason.WRONG_GRADIENT)
            return
        self._ban(target, Reason.FALSE_CLAIMS)
        record = self._records.get(accusation.step)
        if record is not None:
            aggregator = record.terms.members[accusation.part]
            accused_by = {peer for peer, commit in commits.items() if accusation in commit.accusations}
            if aggregator not in accused_by:
                self._ban(aggregator, Reason.COVERED)

    async def _look_into(self, record: Record) -> tuple[Judgement, ...]:
        """What this member has to say of the accusations that were made in a step."""
        judgements = []
        verdicts: dict[Accusation, bool] = {}
        for accuser in sorted(record.commits):
            for accusation in record.commits[accuser].accusations:
                if accusation not in verdicts:
                    known = accusation.step in self._records
                    verdicts[accusation] = known and await self._inquiry(accusation.step).is_guilty(accusation)
                guilty = self._conduct.judgement(accusation, guilty=verdicts[accusation])
                judgements.append(Judgement(accuser, accusation, guilty))
        return tuple(judgements)

    def _ban(self, peer: PeerId, reason: Reason) -> None:
        ban = self.ledger.ban(peer, self.step, reason)
        if ban is not None:
            self._node.events.emit("secure.banned", step=self.step, peer=peer, reason=reason.name, why=reason.value)

    # ---- what others ask

    def _is_expected(self, slot: Slot) -> bool:
        """Nobody is more than one attempt ahead, so nobody can make this peer keep more than a few statements."""
        current = self._current.terms if self._current is not None else None
        reached = current.attempt if current is not None and current.step == self.step else 0
        if slot.step in self._records:
            return slot.attempt <= self._records[slot.step].terms.attempt
        return (
            slot.step in (self.step, self.step + 1) and slot.attempt <= (reached if slot.step == self.step else 0) + 1
        )

    def _note(self, statement: Statement) -> None:
        for agreement in self._agreements:
            agreement.answer(statement)

    async def _find(self, step: int, attempt: int) -> tuple[Cargo, tuple[PeerId, ...]] | None:
        """The cargo of an attempt, which this member may be about to begin."""
        deadline = asyncio.get_running_loop().time() + EXPECT_S
        while True:
            records = [*self._records.values(), *([self._current] if self._current else [])]
            for record in records:
                if (record.terms.step, record.terms.attempt) == (step, attempt):
                    return record.cargo, record.terms.members
            now = asyncio.get_running_loop().time()
            if step < self.step or now >= deadline:
                return None
            await self._began.wait(deadline - now)
