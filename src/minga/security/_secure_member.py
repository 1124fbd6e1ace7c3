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
from collections import deque
from collections.abc import Callable, Iterable

import torch

from minga.core._errors import RemoteError
from minga.core._signal import Signal
from minga.identity._keys import Identity
from minga.network._interface import PeerId
from minga.network._node import Node
from minga.security._agreement import Agreement, ContradictionError
from minga.security._arithmetic import Arithmetic
from minga.security._attempt import Attempt
from minga.security._conduct import Conduct, Seeds, Work
from minga.security._consequences import Setback
from minga.security._data_seeds import data_seed
from minga.security._delivery import Cargo, Deliveries
from minga.security._division import Division
from minga.security._draws import Validation, draw_validations, validator_count
from minga.security._evidence import Case, Evidence
from minga.security._evidence_log import EvidenceLog
from minga.security._inquiry import Inquiry
from minga.security._ledger import Ledger
from minga.security._mesh import Mesh
from minga.security._randomness import derive
from minga.security._record import Record, Terms
from minga.security._rules import Rules
from minga.security._settings import SecureSettings
from minga.security._step_bound import StepBound
from minga.security._verdicts import verdicts
from minga.security._wire import MAX_ACCUSATIONS, Accusation, Commit, Judgement, Slot, Statement
from minga.security._witness import Witness

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
        evidence: EvidenceLog | None = None,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._entropy = entropy
        self.step = 0
        self.ledger = ledger
        self.evidence = evidence or EvidenceLog()
        """Why others left the list of members."""
        self._node, self._identity, self._work = node, identity, work
        self._settings, self._conduct = settings or SecureSettings(), conduct or Conduct()
        self._rules = Rules.of(work.layout, self._settings)
        self._arithmetic = Arithmetic(self._settings)
        self._bound = StepBound()
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

        Raises `OutvotedError` if most of them are somewhere else, and `ExcludedError` if they excluded this peer.
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
            found, judgements = found[:MAX_ACCUSATIONS], self._judgements[:64]
            commit = Commit(state, self.ledger.digest, self._rules.digest, None, found, judgements)
            try:
                record = await self._attempt(attempt, validators).run(commit, gradient)
                break
            except Setback as setback:
                await self._leave_out(setback.cases)
            except ContradictionError:
                await asyncio.sleep(self._settings.patience.proof_s)
            attempt += 1
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
        terms = Terms(self._node.run_id, self.step, number, members, validators, division, self._rules)
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

    async def _leave_out(self, cases: Iterable[Case]) -> None:
        written = list[Case]()
        for case in cases:
            peer, reason = PeerId(case.peer), case.ban
            if peer not in self.ledger:
                continue
            if reason is None:
                self.ledger.remove(peer)
                self._node.events.emit("secure.member_away", step=self.step, peer=peer)
            else:
                self.ledger.ban(peer, self.step, reason)
                self._node.events.emit("secure.banned", step=self.step, peer=peer, reason=reason.name, why=reason.value)
            written.append(case)
        await asyncio.to_thread(self._write_down, written)

    def _write_down(self, cases: Iterable[Case]) -> None:
        for case in cases:
            self.evidence.append(Evidence.of(case, self._identity, self._node.run_id))

    async def _close(self, record: Record) -> None:
        """The attempt passed: apply, hear the judges, and look into what is new."""
        step = self.step
        await self._work.apply(step, await asyncio.to_thread(self._shortened, record))
        self._arithmetic.remember(record)
        self._records[step], self._coins[step] = record, record.randomness
        self._node.events.emit(
            "secure.step", step=step + 1, attempt=record.terms.attempt, members=len(self.ledger.members)
        )
        await self._leave_out(verdicts(record, self._records, Witness(record.terms, self._mesh.slots)))
        self.step += 1
        self._mesh.slots.forget_before(self.step - KEPT_STEPS)
        for old in [old for old in self._records if old <= self.step - KEPT_STEPS]:
            del self._records[old]
        self._judgements = await self._look_into(record)
        self._found = await self._inquiry(step).false_claims(self._own_part(record))

    def _shortened(self, record: Record) -> torch.Tensor:
        return self._bound.shortened(record.vector)

    def _own_part(self, record: Record) -> int:
        return record.terms.members.index(self._node.peer_id)

    def _inquiry(self, step: int) -> Inquiry:
        return Inquiry(self._records[step], self._coins[step - 1], self._work, self._arithmetic, self._deliveries)

    # ---- accusations and judgements

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
