"""All that a member has to do with candidates: it hears them, looks into them, and decides with the others."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Container, Mapping, Sequence
from typing import Final

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.aio import end
from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.rulings import withheld
from minga.security.messaging.gradient_samples import GradientCommitment, GradientPieces, GradientSamples
from minga.security.messaging.spread import StatementGossip
from minga.security.parts.transfer_limits import LOOK_S
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import TrainingBackend
from minga.security.protocol.members import CANDIDACY_LAG, Members, heard_by_most, lot, review
from minga.security.protocol.protocol_state import StepProgress
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import (
    MAX_CANDIDATES,
    Accusation,
    Candidacy,
    Charge,
    Phase,
    Slot,
    Statement,
    StatementStore,
    read,
)
from minga.security.randomness.public_batch import data_seed
from minga.security.randomness.validator_lottery import draw_validations, validator_count
from minga.security.verification.count_sketch import norm
from minga.security.verification.gradient_match import GradientTolerance, sampled_error

# ---- Applicants: what one member hears from them and from candidates, and what it says of that to the others.
#
# What strangers can make it keep is bounded: `MAX_APPLICANTS` words of each step, of those with the lowest lots, so
# that members who hear many applicants keep the same.


MAX_APPLICANTS: Final = 64


class Applicants:
    """Keeps to `slots`, where statements are when they were found to be genuine."""

    def __init__(self, slots: StatementStore) -> None:
        self._slots = slots
        self._in_time: dict[int, dict[PeerId, bytes | None]] = {}

    def accepts(self, author: PeerId, slot: Slot, membership: Members, coin: bytes) -> bool:
        """Whether to keep what a peer says as candidate or applicant, if it did say that.

        Members may ask what was said, and what they say themselves means nothing.
        """
        if membership.is_barred(author, slot.step):
            return False
        said = self._slots.of(slot)
        if author in membership or author in membership.candidates or author in said:
            return True
        applicants = self._applicants(slot, membership)
        if len(applicants) < MAX_APPLICANTS:
            return True
        return lot(coin, author) < max(lot(coin, peer) for peer in applicants)

    def make_room(self, slot: Slot, membership: Members, coin: bytes) -> None:
        """Forget the applicants with the highest lots where there are too many, after one was kept."""
        applicants = sorted(self._applicants(slot, membership), key=lambda peer: lot(coin, peer))
        for peer in applicants[MAX_APPLICANTS:]:
            self._slots.drop(slot, peer)
            self._in_time.get(slot.step, {}).pop(peer, None)

    def hear(self, statement: Statement) -> None:
        """It came in time."""
        with contextlib.suppress(ProtocolError):  # what makes no sense is not heard
            candidacy = read(statement, Candidacy)
            self._in_time.setdefault(statement.slot.step, {})[statement.author] = candidacy.gradient

    def of(self, step: int) -> dict[PeerId, bytes | None]:
        """Who was heard in time in a step, and what it committed to."""
        said = self._slots.of(Slot(step, 0, Phase.CANDIDACY))
        return {peer: digest for peer, digest in self._in_time.get(step, {}).items() if peer in said}

    def named(self, step: int, membership: Members, coin: bytes) -> tuple[tuple[PeerId, bytes | None], ...]:
        """Those of a step, to be told to the other members."""
        heard = self.of(step)
        candidates = sorted(
            (peer, digest) for peer, digest in heard.items() if peer in membership.candidates and digest
        )
        known = {*membership.members, *membership.candidates}
        others = [peer for peer, digest in heard.items() if digest is None and peer not in known]
        applicants = sorted(others, key=lambda peer: lot(coin, peer))[:MAX_CANDIDATES]
        return (*candidates, *((peer, None) for peer in applicants))

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for old in [old for old in self._in_time if old < step]:
            del self._in_time[old]

    # ---- inner workings

    def _applicants(self, slot: Slot, membership: Members) -> list[PeerId]:
        return [peer for peer in self._slots.of(slot) if peer not in membership.candidates and peer not in membership]


# ---- Rechecking a candidate's gradient: validators do it, and all members who judge their accusations.
#
# A member that looks computes the gradient itself, and meanwhile fetches a sample of what the candidate committed to
# (`minga.security.messaging.gradient_samples`), which it needs if the two are not the same to the last bit. It waits
# for that as long as it computes, or `LOOK_S` seconds: a candidate that lets it wait holds up no step that takes
# longer than that.
#
# A validator that finds a wrong gradient accuses the candidate of it, who is banned if most find the same, while a
# false accuser is. A validator that cannot get the sample cannot show that either; if most others cannot get it, or
# find it wrong, the candidate has to start over, and else nothing happens. So neither does a broken line cost anybody
# its place, nor does it help a candidate to keep its gradient from members that look.


def is_about_candidate(accusation: Accusation, candidates: Container[PeerId]) -> bool:
    """Whether an accusation is one of a candidate, and not of a member."""
    return accusation.charge is Charge.WITHHELD or accusation.target in candidates


def counts(accuser: PeerId, accusation: Accusation, record: AttemptRecord, drawn: Mapping[PeerId, PeerId]) -> bool:
    """Whether all look into an accusation of a candidate in the step of `record`, for which validators were `drawn`.

    They do if the accuser was to validate that candidate, and heard of it the same as most. Other accusations of
    candidates mean nothing.
    """
    target = PeerId(accusation.target)
    digest = heard_by_most(record.terms.members, record.commits).get(target)
    due = drawn.get(accuser) == target and accusation.step == record.terms.step - CANDIDACY_LAG
    told = digest is not None and (accusation.target, digest) in record.commits[accuser].heard
    return due and told and accusation.charge in (Charge.GRADIENT, Charge.WITHHELD)


class CandidateRecheck:
    """Looks into candidates on behalf of one member; `coins` are those of past steps."""

    def __init__(
        self,
        work: TrainingBackend,
        samples: GradientSamples,
        candidacies: Applicants,
        thresholds: GradientTolerance,
        coins: Mapping[int, bytes],
    ) -> None:
        self._work, self._samples, self._coins = work, samples, coins
        self._candidacies, self._thresholds = candidacies, thresholds

    async def validate(self, step: int, target: PeerId) -> tuple[Accusation, ...]:
        """What is wrong with what a candidate did in a step."""
        root = self._candidacies.of(step).get(target)
        if root is None:  # it did nothing that could be wrong
            return ()
        error = await self._error(step, target, root, (target,))
        if error is None:
            return (Accusation(step, target, Charge.WITHHELD),)
        return (Accusation(step, target, Charge.GRADIENT),) if self._thresholds.accuses(error) else ()

    async def is_guilty(self, accusation: Accusation, accuser: PeerId, record: AttemptRecord) -> bool | None:
        """Whether an accusation that counts is true; None if this member cannot find out."""
        target = PeerId(accusation.target)
        root = heard_by_most(record.terms.members, record.commits)[target]
        sources = (target, accuser) if accusation.charge is Charge.GRADIENT else (target,)
        error = await self._error(accusation.step, target, root or b"", sources)
        if error is None:
            return True if accusation.charge is Charge.WITHHELD else None
        return self._thresholds.convicts(error)

    async def _error(self, step: int, target: PeerId, root: bytes, sources: Sequence[PeerId]) -> float | None:
        """How far what a candidate committed to is from what it should be; None if nobody shows that in time."""
        places = self._samples.drawn(self._coins[step + 1], target)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOOK_S
        fetching = loop.create_task(self._samples.fetch(step, target, root, places, sources))
        try:
            expected = await self._work.gradient(step, data_seed(self._coins[step - 1], target))
            own = await self._samples.encode(expected)
            if own.root == root:
                return 0.0
            await asyncio.wait([fetching], timeout=max(0.0, until_s - loop.time()))
            sent = fetching.result() if fetching.done() else None
        finally:
            await end(fetching)
        return await asyncio.to_thread(self._compare, sent, own, expected) if sent is not None else None

    def _compare(self, sent: GradientPieces, own: GradientCommitment, expected: torch.Tensor) -> float:
        """How far a sample is from the same pieces of a gradient that is `expected`."""
        try:
            theirs = self._samples.decode(sent)
        except InvalidEncodingError:  # what means nothing is no gradient
            return math.inf
        ours = self._samples.decode(own.sample(sent.pieces))
        return sampled_error(theirs.numpy(), ours.numpy(), norm(expected.numpy()), expected.numel())


# ---- The register of candidates: what one member does with them.


@loop_bound
class CandidateRegister:
    """Of one peer; `progress` says where it is. `coins` are those of past steps."""

    def __init__(
        self,
        node: Node,
        gossip: StatementGossip,
        work: TrainingBackend,
        progress: StepProgress,
        settings: SecureSettings,
        coins: Mapping[int, bytes],
    ) -> None:
        self.heard = Applicants(gossip.slots)
        self.samples = GradientSamples(node, work.layout, lambda peer: peer in progress.membership)
        self._node, self._gossip, self._progress, self._settings = node, gossip, progress, settings
        self._recheck = CandidateRecheck(work, self.samples, self.heard, settings.thresholds, coins)
        self._drawn: dict[PeerId, PeerId] = {}

    def draw(self) -> Mapping[PeerId, PeerId]:
        """The validators of the present step and their targets, members and candidates."""
        progress, self._drawn = self._progress, {}
        if progress.step:  # else nothing was done yet that could be looked at
            members, candidates = progress.membership.members, progress.membership.candidates
            shown = [peer for peer, one in candidates.items() if one.since <= progress.step - CANDIDACY_LAG]
            per_validator = self._settings.peers_per_validator
            count = validator_count(len(members), len(shown), peers_per_validator=per_validator)
            pairs = draw_validations(progress.coin, members, shown, count)
            self._drawn = {pair.validator: pair.target for pair in pairs}
        return self._drawn

    def named(self) -> tuple[tuple[PeerId, bytes | None], ...]:
        """Whom this member heard in time, as it tells the others in the present step."""
        progress = self._progress
        return self.heard.named(progress.step - CANDIDACY_LAG, progress.membership, progress.coin)

    async def validate(self, candidate: PeerId, first: int) -> tuple[Accusation, ...]:
        """What is wrong with what a candidate did; nothing if that was before step `first`."""
        step = self._progress.step - CANDIDACY_LAG
        return await self._recheck.validate(step, candidate) if step >= first else ()

    def counts(
        self, accuser: PeerId, accusation: Accusation, record: AttemptRecord, candidates: Container[PeerId]
    ) -> bool:
        """Whether an accusation that was made in the step of `record`, with these candidates, is looked into: any of a
        member, and of a candidate those by who was to look into it.
        """
        return not is_about_candidate(accusation, candidates) or counts(accuser, accusation, record, self._drawn)

    async def is_guilty(self, accuser: PeerId, accusation: Accusation, record: AttemptRecord) -> bool | None:
        """Whether it is true; None if this member cannot find out."""
        return await self._recheck.is_guilty(accusation, accuser, record)

    def review(self, record: AttemptRecord, probation_steps: int) -> tuple[PeerId, ...]:
        """Decide what becomes of candidates after the step of `record`, which is the present one; who was admitted."""
        membership, charges = self._progress.membership, self._progress.charges
        accused = {
            PeerId(accusation.target)
            for accuser, commit in record.commits.items()
            for accusation in commit.accusations
            if self.counts(accuser, accusation, record, membership.candidates)
        }
        dropped = withheld(record.terms.members, record.commits, charges)
        admitted = review(membership, record, probation_steps, accused, dropped)
        slot = Slot(record.terms.step - CANDIDACY_LAG, 0, Phase.CANDIDACY)
        own = self.heard.of(slot.step)
        for peer, digest in heard_by_most(record.terms.members, record.commits).items():
            if own.get(peer, digest) != digest:  # the two statements together are a proof
                self._node.spawn(self._gossip.pull(slot, [peer], record.terms.members))
        return admitted

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        self.heard.forget_before(step)
        self.samples.forget_before(step)
