"""All that a member has to do with candidates: it hears them, looks into them, and decides with the others."""

from __future__ import annotations

from collections.abc import Container, Mapping

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.rulings import withheld
from minga.security.messaging.gradient_samples import GradientSamples
from minga.security.messaging.spread import StatementGossip
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import TrainingBackend
from minga.security.protocol.probation import CANDIDACY_LAG, heard_by_most, review
from minga.security.protocol.protocol_state import StepProgress
from minga.security.protocol.settings import SecureSettings
from minga.security.protocol.statements import Accusation, Phase, Slot
from minga.security.randomness.validator_lottery import draw_validations, validator_count
from minga.security.rechecking.applicants import Applicants
from minga.security.rechecking.recheck_candidate import CandidateRecheck, counts, is_about_candidate


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
