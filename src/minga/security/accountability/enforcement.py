"""What the rules lead to in a live step: the cases of the peers that have to go, and the end of the attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minga.network.interface import PeerId
from minga.security.accountability import proofs, rulings
from minga.security.accountability.proofs import Case
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import PendingAccusations, Reason
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.statements import Commit, Confirm, EquivocationProof, Phase, Revealed, Slot, StatementStore

# ---- The case builder: it writes down why members leave the list, from what is known of an attempt (`proofs.py`).


class CaseBuilder:
    """Of one attempt: makes cases from the statements that were heard in it."""

    def __init__(self, terms: Terms, slots: StatementStore) -> None:
        self._terms, self._slots = terms, slots

    def contradicted(self, proof: EquivocationProof) -> proofs.Case:
        """It said two things."""
        return self._case(proof.author, Reason.EQUIVOCATED, proofs.Contradicted(proof))

    def named(self, peer: PeerId, reason: Reason) -> proofs.Case:
        """Most name it in their commitments."""
        return self._case(peer, reason, proofs.Named(self._said(Phase.COMMIT)))

    def unheard(self, peer: PeerId, phase: Phase) -> proofs.Case:
        """It said nothing; before it has committed itself it is just away."""
        reason = None if phase is Phase.COMMIT else Reason.SILENT
        return self._case(peer, reason, proofs.Unheard(phase, self._said(phase.vote)))

    def elsewhere(self, peer: PeerId) -> proofs.Case:
        """It stands elsewhere than most."""
        return self._case(peer, None, proofs.Elsewhere(self._said(Phase.COMMIT)))

    def unopened(self, peer: PeerId) -> proofs.Case:
        """What it revealed is not what it committed to."""
        (result,), (reveal,) = self._said(Phase.RESULT, [peer]), self._said(Phase.REVEAL, [peer])
        return self._case(peer, Reason.SILENT, proofs.Unopened(result, reveal))

    def undelivered(self, guilty: int, part: int, owner: int) -> proofs.Case:
        """The owner of a part kept it to itself, or it and the aggregator say different things."""
        members = self._terms.members
        (commit,) = self._said(Phase.COMMIT, [members[owner]])
        proof = proofs.Undelivered(part, owner, commit, self._said(Phase.RESULT), self._said(Phase.REVEAL))
        return self._case(members[guilty], Reason.UNDELIVERED, proof)

    def unobtainable(self, part: int) -> proofs.Case:
        """Most could not get an aggregate."""
        proof = proofs.Unobtainable(part, self._said(Phase.CLAIMS))
        return self._case(self._terms.members[part], Reason.UNDELIVERED, proof)

    def behind(self, peer: PeerId) -> proofs.Case:
        """It could not get an aggregate that others have."""
        return self._case(peer, None, proofs.Behind(self._said(Phase.CLAIMS)))

    def recomputed(self, peer: PeerId, reason: Reason, part: int, record: AttemptRecord) -> proofs.Case:
        """It was found out by computing again what happened to a part."""
        store, terms = record.store, self._terms
        proof = proofs.Recomputed(
            terms.rules,
            self._said(Phase.COMMIT),
            self._said(Phase.RESULT),
            self._said(Phase.REVEAL),
            self._said(Phase.CLAIMS),
            self._said(Phase.CONFIRM),
            part,
            tuple(bytes(store.parts[owner, part]) for owner in terms.contributors),
            tuple(store.paths[owner, part] for owner in terms.contributors),
            bytes(store.values[part]),
        )
        return self._case(peer, reason, proof)

    def admitted(self, peer: PeerId, standing: ProtocolState) -> proofs.Case:
        """It became a member after this attempt, before which the members stood there."""
        return self._case(peer, None, proofs.Admitted(standing, self._terms.rules, self._said(Phase.COMMIT)))

    def hidden(self, part: int, owner: int) -> proofs.Case:
        """Most could not get a part that had to be computed again."""
        (commit,) = self._said(Phase.COMMIT, [self._terms.members[owner]])
        proof = proofs.Hidden(part, owner, commit, self._said(Phase.CONFIRM), self._said(Phase.CHECK))
        return self._case(self._terms.members[owner], Reason.UNDELIVERED, proof)

    def unshown(self, peer: PeerId, reason: Reason) -> proofs.Case:
        """What this member cannot show."""
        return self._case(peer, reason, proofs.Unshown())

    def judged(
        self,
        peer: PeerId,
        reason: Reason,
        pending: PendingAccusations,
        records: Mapping[int, AttemptRecord],
        judges: Iterable[PeerId],
    ) -> proofs.Case:
        """What the `judges` of this attempt found about an accusation that was made in the step before.

        A peer that was no member then does not have what shows it.
        """
        accuser, accusation = PeerId(pending.accuser), pending.accusation
        earlier, accused = records.get(self._terms.step - 1), records.get(accusation.step)
        is_covered = reason is Reason.COVERED
        if earlier is None or (is_covered and accused is None):
            return self.unshown(peer, reason)
        before = CaseBuilder(earlier.terms, self._slots)
        (accusing,) = before._said(Phase.COMMIT, [accuser])
        covering = before._said(Phase.COMMIT, [peer])[0] if is_covered else None
        members_then = accused.terms.members if is_covered and accused else ()
        judging = self._said(Phase.COMMIT, judges)
        return self._case(peer, reason, proofs.Judged(accuser, accusation, accusing, judging, covering, members_then))

    # ---- inner workings

    def _said(self, phase: Phase, authors: Iterable[PeerId] | None = None) -> proofs.Statements:
        said = self._slots.of(Slot(self._terms.step, self._terms.attempt, phase))
        return tuple(said[peer] for peer in sorted(authors or self._terms.members) if peer in said)

    def _case(self, peer: PeerId, reason: Reason | None, proof: proofs.Proof) -> proofs.Case:
        terms = self._terms
        return proofs.Case(peer, reason.name if reason else None, terms.step, terms.attempt, terms.members, proof)


# ---- What the rules lead to in a live step.


class AttemptFailed(Exception):
    """An attempt failed: `cases` say which members have to go, and what shows that."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = tuple(cases)
        super().__init__(f"{len(self.cases)} members have to go")


def contradicted(
    peers: Iterable[PeerId],
    terms: Terms,
    commits: Mapping[PeerId, Commit],
    proofs: Mapping[PeerId, EquivocationProof],
    case_builder: CaseBuilder,
) -> list[Case]:
    """The cases of those `peers` of which most members can prove that they said two different things."""
    return [
        case_builder.contradicted(proofs[peer]) if peer in proofs else case_builder.named(peer, Reason.EQUIVOCATED)
        for peer in sorted(rulings.who_equivocated(terms.members, commits).intersection(peers))
    ]


def require_place(terms: Terms, commits: Mapping[PeerId, Commit], me: PeerId) -> None:
    """Raise `OutvotedError` if most members stand nowhere, or elsewhere than `me`."""
    right = rulings.place_of_most(terms.members, commits)
    if right is None:
        raise OutvotedError("no majority of the members is in the same state", round=terms.step)
    if me in commits and commits[me].place != right:
        raise DivergedError("most members are in another state than this peer", round=terms.step)


def require_delivery(record: AttemptRecord, reveals: Mapping[PeerId, Revealed], case_builder: CaseBuilder) -> None:
    """A member that revealed something else than it had committed to goes, and so do those that withheld a part.

    Raises `AttemptFailed`.
    """
    if closed := rulings.who_opened_nothing(record.terms.coin, record.results, reveals):
        raise AttemptFailed(map(case_builder.unopened, closed))
    if gone := rulings.who_withheld(record.terms.members, record.results, reveals):
        raise AttemptFailed(case_builder.undelivered(rank, part, owner) for rank, (part, owner) in gone.items())


def require_values(record: AttemptRecord, case_builder: CaseBuilder) -> None:
    """The aggregators go whose aggregates most could not get; members that lack what most have need their state.

    Raises `AttemptFailed`, and `OutvotedError` if this member lacks one.
    """
    terms = record.terms
    if gone := rulings.unobtainable_parts(terms.members, record.claims):
        raise AttemptFailed(map(case_builder.unobtainable, gone))
    if any(part not in record.values for part in terms.division.parts):
        raise OutvotedError("most others have an aggregate that this peer cannot get", round=terms.step)
    if behind := rulings.who_is_behind(terms.members, record.claims):
        # they cannot go on, and without their claims nothing can be checked
        raise AttemptFailed(map(case_builder.behind, behind))


def require_shown(record: AttemptRecord, confirms: Mapping[PeerId, Confirm], case_builder: CaseBuilder) -> None:
    """The owners go that have not shown most others what has to be computed again: raises `AttemptFailed`."""
    parts = {owner: part for part, owner in rulings.hidden_parts(record.terms.members, confirms)}
    if gone := [(part, owner) for owner, part in parts.items() if owner in record.terms.contributors]:
        raise AttemptFailed(case_builder.hidden(part, owner) for part, owner in gone)


def verdicts(
    pending: Iterable[PendingAccusations],
    record: AttemptRecord,
    records: Mapping[int, AttemptRecord],
    case_builder: CaseBuilder,
) -> list[Case]:
    """The cases that the commitments of `record` decide about the accusations of the step before.

    `records` are those of the past steps in which this peer was a member, `case_builder` is that of `record`.
    """
    cases = []
    for one in pending:
        gone, judges = rulings.verdict(record.terms.members, record.commits, one)
        cases += [case_builder.judged(peer, reason, one, records, judges) for peer, reason in gone]
    return cases
