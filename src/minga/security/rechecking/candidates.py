"""All that a member has to do with candidates, but look into their work: it hears them, and decides with the others."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping
from typing import Final

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.rulings import withheld
from minga.security.messaging.gradient_samples import GradientSamples
from minga.security.messaging.spread import StatementGossip
from minga.security.protocol.attempt_record import AttemptRecord
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
from minga.security.randomness.validator_lottery import draw_validations, validator_count

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


# ---- The register of candidates: what one member does with them.


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


@loop_bound
class CandidateRegister:
    """Of one peer; `progress` says where it is."""

    def __init__(
        self,
        node: Node,
        gossip: StatementGossip,
        layout: VectorLayout,
        progress: StepProgress,
        settings: SecureSettings,
    ) -> None:
        self.heard = Applicants(gossip.slots)
        self.samples = GradientSamples(node, layout, lambda peer: peer in progress.membership)
        self._node, self._gossip, self._progress, self._settings = node, gossip, progress, settings
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

    def counts(
        self, accuser: PeerId, accusation: Accusation, record: AttemptRecord, candidates: Container[PeerId]
    ) -> bool:
        """Whether an accusation that was made in the step of `record`, with these candidates, is looked into: any of a
        member, and of a candidate those by who was to look into it.
        """
        return not is_about_candidate(accusation, candidates) or counts(accuser, accusation, record, self._drawn)

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
