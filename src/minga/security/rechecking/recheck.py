"""Looking into what others did: validators do it first, then everybody who judges an accusation.

Everything that is needed is public (the seed of the batch follows from the coin) or was committed to, so all who look
come to the same finding; gradients that differ by rounding, because two members have different hardware, count as
equal.

Whether a member sent its gradient is seen by what it claims of each part, which all have, beside what would be true of
the right one (`minga.security.verification.gradient_match`): nothing has to be fetched, so neither a slow line nor who
withholds a part has a say in that. Only whether claims are true of other bytes than the right ones takes these. They
can be had from the aggregator of the part, its owner, and its accusers. A candidate, whose gradient nobody aggregates,
shows a sample of it (`minga.security.messaging.gradient_samples`), which is fetched while this member computes. Nobody
is waited for longer than `LOOK_S`: else hostile ones who let others wait could make a validator, or some of the judges,
so late that the others go on without these. What did not come in that time proves nothing. A judge who lacks a part
says nothing of claims about it, so that nobody can make an accusation look false by withholding what it is about. A
validator that cannot get a candidate's sample says just that: if most others cannot get it, or find it wrong, the
candidate has to start over, and else nothing happens. So neither does a broken line cost a candidate its place, nor
does it help one to keep its gradient from members that look.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Mapping, Sequence

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.aio import end
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.interface import PeerId
from minga.security.messaging.gradient_samples import GradientCommitment, GradientPieces
from minga.security.messaging.spread import Deliveries
from minga.security.parts.equal_parts import encoded
from minga.security.parts.transfer_limits import LOOK_S
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.security.protocol.members import CANDIDACY_LAG, PendingAccusations, heard_by_most
from minga.security.protocol.statements import Accusation, Charge, Judgement
from minga.security.protocol.step_math import StepMath
from minga.security.randomness.public_batch import data_seed
from minga.security.rechecking.candidates import CandidateRegister, is_about_candidate
from minga.security.verification.count_sketch import norm
from minga.security.verification.gradient_match import sampled_error


@loop_bound
class Recheck:
    """Of one member: `records` and `coins` are those of the steps that may be asked about; `first` is the first step in
    which this peer can take part as a member, of those before it has nothing to say.
    """

    def __init__(
        self,
        work: TrainingBackend,
        step_math: StepMath,
        deliveries: Deliveries,
        register: CandidateRegister,
        behaviour: Behaviour,
        records: Mapping[int, AttemptRecord],
        coins: Mapping[int, bytes],
        first: int,
    ) -> None:
        self._work, self._math, self._deliveries, self._behaviour = work, step_math, deliveries, behaviour
        self._samples, self._heard = register.samples, register.heard
        self._records, self._coins, self.first = records, coins, first
        self._thresholds = step_math.settings.thresholds

    async def validate(self, target: PeerId, now: int, candidates: Container[PeerId]) -> tuple[Accusation, ...]:
        """What is wrong with what a peer did in the last step before `now` that can be looked into, as far as it can be
        found out.
        """
        if target in candidates:
            return await self._validate_candidate(target, now - CANDIDACY_LAG)
        record = self._records.get(now - 1)
        if record is None or target not in record.terms.members or target in record.terms.validators:
            return ()
        error, worst = await self._member_error(record, target)
        is_wrong, owner, step = self._thresholds.accuses(error), record.terms.members.index(target), record.terms.step
        if is_wrong:  # claims that are not even true of what it sent convict their aggregator, too
            await self._get(record, owner, worst, ())
        part = await asyncio.to_thread(self._first_false_claim, record, owner)
        found = () if part is None else (Accusation(step, target, Charge.CLAIMS, part),)
        return (*found, Accusation(step, target, Charge.GRADIENT)) if is_wrong else found

    async def false_claims(self, record: AttemptRecord, part: int) -> tuple[Accusation, ...]:
        """Of the aggregator of a part: which others make claims about it that are false."""
        others = [owner for owner in record.terms.contributors if owner != part]
        liars = await asyncio.to_thread(self._math.liars, record, part, others)
        return tuple(Accusation(record.terms.step, liar, Charge.CLAIMS, part) for liar in liars)

    async def judge(
        self, pending: Sequence[PendingAccusations], record: AttemptRecord, candidates: Container[PeerId]
    ) -> tuple[Judgement, ...]:
        """What this member has to say of the charges of the step of `record`, with these candidates."""
        judgements = []
        found: dict[Accusation, bool | None] = {}
        for one in pending:
            accusation = one.accusation
            if accusation not in found:
                accusers = [PeerId(each.accuser) for each in pending if each.accusation == accusation]
                found[accusation] = await self.is_guilty(accusation, accusers, record, candidates)
            guilty = found[accusation]
            if guilty is not None:
                said = self._behaviour.judgement(accusation, guilty=guilty)
                judgements.append(Judgement(one.accuser, accusation, said))
        return tuple(judgements)

    async def is_guilty(
        self, accusation: Accusation, accusers: Sequence[PeerId], record: AttemptRecord, candidates: Container[PeerId]
    ) -> bool | None:
        """Whether an accusation is true that was made in the step of `record`; None if it cannot be said."""
        if accusation.step < self.first:
            return None
        if is_about_candidate(accusation, candidates):
            return await self._is_candidate_guilty(accusation, accusers[0], record)
        accused = self._records.get(accusation.step)
        return False if accused is None else await self._is_member_guilty(accusation, accusers, accused)

    # ---- inner workings: a member

    async def _is_member_guilty(
        self, accusation: Accusation, accusers: Sequence[PeerId], record: AttemptRecord
    ) -> bool | None:
        terms, target = record.terms, PeerId(accusation.target)
        if target not in terms.members or target in terms.validators:
            return False
        owner, part = terms.members.index(target), accusation.part
        if accusation.charge is Charge.GRADIENT:
            error, _ = await self._member_error(record, target)
            return self._thresholds.convicts(error)
        if part >= len(terms.members) or not terms.division.numel(part):
            return False
        await self._get(record, owner, part, accusers)
        if (owner, part) not in record.store.parts:
            return None
        return bool(await asyncio.to_thread(self._math.liars, record, part, [owner]))

    async def _member_error(self, record: AttemptRecord, target: PeerId) -> tuple[float, int]:
        """Compute the gradient of a member again; how far its claims are from what is true of that, and in which part
        farthest.
        """
        terms, store = record.terms, record.store
        expected = await self._expected(terms.step, target)
        owner = terms.members.index(target)
        parts, tree = await asyncio.to_thread(encoded, terms.division, expected, store.pool)
        if store.roots.get(owner) == tree.root:  # it is the same to the last bit
            store.put_owners(owner, dict(enumerate(parts)), tree)
        return await asyncio.to_thread(self._math.claimed_error, record, owner, parts)

    @any_thread
    def _first_false_claim(self, record: AttemptRecord, owner: int) -> int | None:
        """The first part about which a member claims what is not true of the bytes that are at hand."""
        parts = range(len(record.terms.members))
        return next((part for part in parts if self._math.liars(record, part, [owner])), None)

    async def _get(self, record: AttemptRecord, owner: int, part: int, accusers: Sequence[PeerId]) -> None:
        """Fetch a part of a member, if that is possible in time."""
        terms = record.terms
        known = [terms.members.index(peer) for peer in accusers if peer in terms.members]
        if (owner, part) not in record.store.parts:
            sources = (part, *known)
            await self._deliveries.fetch_part(terms.step, terms.attempt, part, owner, first=sources, limit_s=LOOK_S)

    # ---- inner workings: a candidate

    async def _validate_candidate(self, target: PeerId, step: int) -> tuple[Accusation, ...]:
        root = self._heard.of(step).get(target)
        if step < self.first or root is None:  # it did nothing that could be wrong, or this peer was not there
            return ()
        error = await self._candidate_error(step, target, root, (target,))
        if error is None:
            return (Accusation(step, target, Charge.WITHHELD),)
        return (Accusation(step, target, Charge.GRADIENT),) if self._thresholds.accuses(error) else ()

    async def _is_candidate_guilty(self, accusation: Accusation, accuser: PeerId, record: AttemptRecord) -> bool | None:
        target = PeerId(accusation.target)
        root = heard_by_most(record.terms.members, record.commits)[target]
        sources = (target, accuser) if accusation.charge is Charge.GRADIENT else (target,)
        error = await self._candidate_error(accusation.step, target, root or b"", sources)
        if error is None:
            return True if accusation.charge is Charge.WITHHELD else None
        return self._thresholds.convicts(error)

    async def _candidate_error(self, step: int, target: PeerId, root: bytes, sources: Sequence[PeerId]) -> float | None:
        """How far what a candidate committed to is from what it should be; None if nobody shows that in time."""
        places = self._samples.drawn(self._coins[step + 1], target)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOOK_S
        fetching = loop.create_task(self._samples.fetch(step, target, root, places, sources))
        try:
            expected = await self._expected(step, target)
            own = await self._samples.encode(expected)
            if own.root == root:
                return 0.0
            await asyncio.wait([fetching], timeout=max(0.0, until_s - loop.time()))
            sent = fetching.result() if fetching.done() else None
        finally:
            await end(fetching)
        return await asyncio.to_thread(self._candidate_deviation, sent, own, expected) if sent is not None else None

    def _candidate_deviation(self, sent: GradientPieces, own: GradientCommitment, expected: torch.Tensor) -> float:
        """How far a sample is from the same pieces of a gradient that is `expected`."""
        try:
            theirs = self._samples.decode(sent)
        except InvalidEncodingError:  # what means nothing is no gradient
            return math.inf
        ours = self._samples.decode(own.sample(sent.pieces))
        return sampled_error(theirs.numpy(), ours.numpy(), norm(expected.numpy()), expected.numel())

    async def _expected(self, step: int, target: PeerId) -> torch.Tensor:
        """The gradient that a peer owed in a step."""
        return await self._work.gradient(step, data_seed(self._coins[step - 1], target))
