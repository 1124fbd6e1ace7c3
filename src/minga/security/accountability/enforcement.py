"""What the rules lead to in a live step: the cases of the peers that have to go, and the end of the attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minga.network.interface import PeerId
from minga.security.accountability import rulings
from minga.security.accountability.case_builder import CaseBuilder
from minga.security.accountability.proofs import Case
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import Reason
from minga.security.protocol.pending_accusations import PendingAccusations
from minga.security.protocol.statement_store import EquivocationProof
from minga.security.protocol.statements import Commit, Confirm, Revealed


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
