"""What a member says of accusations: it looks into each, and tells the others in its next commitment what it found."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.buffer_pool import Bytes
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.messaging.spread import Deliveries
from minga.security.parts.equal_parts import encoded
from minga.security.parts.transfer_limits import LOOK_S
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.security.protocol.members import PendingAccusations
from minga.security.protocol.statements import Accusation, Charge, Judgement
from minga.security.protocol.step_math import StepMath
from minga.security.randomness.public_batch import data_seed
from minga.security.rechecking.candidates import CandidateRegister, is_about_candidate
from minga.security.verification.gradient_match import gradient_error

# ---- Rechecking a member's work of an earlier step: validators do it, and everybody who judges an accusation.
#
# Everything that is needed is public (the seed of the batch follows from the coin) or was committed to (parts and
# aggregates by their digests), so all who look come to the same finding; gradients that differ by rounding, because
# two members have different hardware, count as equal.
#
# Parts are needed only of a target whose gradient is not the same to the last bit. A part can be had from its
# aggregator, its owner, and the owner's accusers. None of them is waited for longer than `LOOK_S`: else hostile ones
# who let others wait could make a validator, or some of the judges, so late that the others go on without these. What
# did not come in that time proves nothing; it takes one wrong part to be guilty, and a judge who finds none but lacks
# some says nothing, so that nobody can make an accusation look false by withholding what it is about.


class MemberRecheck:
    """Looks into the members of one past step; `before` is the coin of the step before it."""

    def __init__(
        self, record: AttemptRecord, before: bytes, work: TrainingBackend, step_math: StepMath, deliveries: Deliveries
    ) -> None:
        self._record, self._before, self._work = record, before, work
        self._math, self._deliveries = step_math, deliveries
        self._thresholds = step_math.settings.thresholds

    async def validate(self, target: PeerId) -> tuple[Accusation, ...]:
        """What is wrong with the contribution of a member, as far as it can be found out."""
        terms = self._record.terms
        if target not in terms.members or target in terms.validators:
            return ()
        if self._thresholds.accuses(await self._gradient_error(target)):
            return (Accusation(terms.step, target, Charge.GRADIENT),)
        part = await asyncio.to_thread(self._first_false_claim, terms.members.index(target))
        return () if part is None else (Accusation(terms.step, target, Charge.CLAIMS, part),)

    async def is_guilty(self, accusation: Accusation, accusers: Sequence[PeerId]) -> bool | None:
        """Whether an accusation about this step is true, which the `accusers` made; None if that cannot be told."""
        terms, target = self._record.terms, PeerId(accusation.target)
        if accusation.step != terms.step or target not in terms.members or target in terms.validators:
            return False
        owner, part = terms.members.index(target), accusation.part
        if accusation.charge is Charge.GRADIENT:
            if self._thresholds.convicts(await self._gradient_error(target, accusers)):
                return True
            return None if self._lacking(owner, terms.division.parts) else False
        if part >= len(terms.members) or not terms.division.numel(part):
            return False
        if await self._get(owner, [part], accusers):
            return None
        return bool(await asyncio.to_thread(self._math.liars, self._record, part, [owner]))

    async def false_claims(self, part: int) -> tuple[Accusation, ...]:
        """Of the aggregator of a part: which others make claims about it that are false."""
        terms = self._record.terms
        others = [owner for owner in terms.contributors if owner != part]
        liars = await asyncio.to_thread(self._math.liars, self._record, part, others)
        return tuple(Accusation(terms.step, liar, Charge.CLAIMS, part) for liar in liars)

    # ---- inner workings

    async def _gradient_error(self, target: PeerId, accusers: Sequence[PeerId] = ()) -> float:
        """Compute the gradient of a member again; how far what the member committed to is from it, as far as it can be
        had, 0 if not at all.
        """
        terms, store = self._record.terms, self._record.store
        expected = await self._work.gradient(terms.step, data_seed(self._before, target))
        owner = terms.members.index(target)
        parts, tree = await asyncio.to_thread(encoded, terms.division, expected, store.pool)
        if store.roots.get(owner) == tree.root:  # it is the same to the last bit
            store.put_owners(owner, dict(enumerate(parts)), tree)
            return 0.0
        await self._get(owner, terms.division.parts, accusers)
        return await asyncio.to_thread(self._compare, owner, parts)

    def _compare(self, owner: int, expected: Sequence[Bytes]) -> float:
        """How far the parts of a member that are at hand are from what they should be."""
        division, ours, theirs = self._record.terms.division, [], []
        for part in division.parts:
            if (owner, part) in self._record.store.parts:
                own = torch.empty(division.numel(part))
                division.decode(expected[part], part, own)
                ours.append(own.numpy())
                try:
                    theirs.append(self._record.row(owner, part).numpy())
                except InvalidEncodingError:  # what means nothing is no gradient
                    return math.inf
        return gradient_error(theirs, ours)

    def _first_false_claim(self, owner: int) -> int | None:
        """The first part about which a member claims what is not true of the bytes that are at hand."""
        parts = range(len(self._record.terms.members))
        return next((part for part in parts if self._math.liars(self._record, part, [owner])), None)

    def _lacking(self, owner: int, parts: Collection[int]) -> list[int]:
        return [part for part in parts if (owner, part) not in self._record.store.parts]

    async def _get(self, owner: int, parts: Collection[int], accusers: Sequence[PeerId]) -> list[int]:
        """Fetch parts of a member; return those that did not come."""
        terms = self._record.terms
        known = [terms.members.index(peer) for peer in accusers if peer in terms.members]
        fetching = [
            self._deliveries.fetch_part(terms.step, terms.attempt, part, owner, first=(part, *known))
            for part in self._lacking(owner, parts)
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await asyncio.gather(*fetching)
        return self._lacking(owner, parts)


# ---- The juror: what this member says of accusations.


@loop_bound
class Juror:
    """Of one member; `records` are those of the steps that may be asked about, `recheck` looks into one of them."""

    def __init__(
        self,
        records: Mapping[int, AttemptRecord],
        register: CandidateRegister,
        behaviour: Behaviour,
        recheck: Callable[[int], MemberRecheck],
        first: int,
    ) -> None:
        self._records, self._register, self._behaviour, self._recheck = records, register, behaviour, recheck
        self.first = first
        """The first step in which this peer can take part as a member; of those before it has nothing to say."""

    def begin_at(self, step: int) -> None:
        """This peer took no part in the steps before `step`."""
        self.first = step

    async def look_into(
        self, pending: Sequence[PendingAccusations], record: AttemptRecord, candidates: Container[PeerId]
    ) -> tuple[Judgement, ...]:
        """What this member has to say of the charges of the step of `record`, with these candidates."""
        judgements = []
        found: dict[Accusation, bool | None] = {}
        for one in pending:
            accusation = one.accusation
            if accusation not in found:
                accusers = [PeerId(each.accuser) for each in pending if each.accusation == accusation]
                found[accusation] = await self._is_guilty(accusation, accusers, record, candidates)
            guilty = found[accusation]
            if guilty is not None:
                said = self._behaviour.judgement(accusation, guilty=guilty)
                judgements.append(Judgement(one.accuser, accusation, said))
        return tuple(judgements)

    async def _is_guilty(
        self, accusation: Accusation, accusers: Sequence[PeerId], record: AttemptRecord, candidates: Container[PeerId]
    ) -> bool | None:
        """Whether an accusation is true; None if it cannot be said."""
        if accusation.step < self.first:
            return None
        if is_about_candidate(accusation, candidates):
            return await self._register.is_guilty(accusers[0], accusation, record)
        if accusation.step not in self._records:
            return False
        return await self._recheck(accusation.step).is_guilty(accusation, accusers)
