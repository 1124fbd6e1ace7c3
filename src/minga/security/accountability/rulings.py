"""What follows from the words of a phase, the same for all who heard the same: who has to go, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from minga.network.interface import PeerId
from minga.security.accountability.case_builder import CaseBuilder
from minga.security.accountability.proofs import Case
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import Reason
from minga.security.protocol.statement_store import EquivocationProof
from minga.security.protocol.statements import Commit, Confirm, Result, Revealed


class AttemptFailed(Exception):
    """An attempt failed: `cases` say who has to go, and what shows that."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = tuple(cases)
        super().__init__(f"{len(self.cases)} members have to go")


def contradicted(
    peers: Iterable[PeerId],
    terms: Terms,
    commits: Mapping[PeerId, Commit],
    proofs: Mapping[PeerId, EquivocationProof],
    witness: CaseBuilder,
) -> list[Case]:
    """The cases of those `peers` of whom most members can prove that they said two different things."""
    liars = _named_by_most(terms, (body.equivocators for body in commits.values()))
    return [
        witness.contradicted(proofs[peer]) if peer in proofs else witness.named(peer, Reason.EQUIVOCATED)
        for peer in sorted(peers)
        if peer in liars
    ]


def require_no_liars(
    terms: Terms, commits: Mapping[PeerId, Commit], proofs: Mapping[PeerId, EquivocationProof], witness: CaseBuilder
) -> None:
    """Members who are proven by most to have said two different things have to go: raises `AttemptFailed`."""
    if cases := contradicted(terms.members, terms, commits, proofs, witness):
        raise AttemptFailed(cases)


def who_kept_silent(terms: Terms, commits: Mapping[PeerId, Commit]) -> list[PeerId]:
    """Members of whom most heard nothing in the last phase of the step before."""
    silent = _named_by_most(terms, (body.unheard for body in commits.values()))
    return [peer for peer in terms.members if peer in silent]


def who_stands_elsewhere(terms: Terms, commits: Mapping[PeerId, Commit], me: PeerId) -> frozenset[PeerId]:
    """Members that stand elsewhere than most and need the state of these. Raises `OutvotedError` if `me` does."""
    places = {peer: body.place for peer, body in commits.items()}
    right, count = Counter(places.values()).most_common(1)[0]
    if 2 * count <= len(terms.members):
        raise OutvotedError("no majority of the members is in the same state", round=terms.step)
    if places.get(me, right) != right:
        raise DivergedError("most members are in another state than this peer", round=terms.step)
    return frozenset(peer for peer, place in places.items() if place != right)


def complaints(members: Sequence[PeerId], results: Mapping[PeerId, Result]) -> list[tuple[int, int]]:
    """(aggregator, owner) of the parts that their aggregators could not get, in the order of the ranks."""
    return sorted({(members.index(peer), owner) for peer, result in results.items() for owner in result.silent})


def who_withheld(
    members: Sequence[PeerId], results: Mapping[PeerId, Result], reveals: Mapping[PeerId, Revealed]
) -> dict[int, tuple[int, int]]:
    """The ranks of `members` who go because aggregators could not get their parts, each with its (aggregator, owner).

    What most could not get, its owner owed to all; and an owner of whom most lacked their parts was late. Where most
    could get a part when they looked for it, either the owner was late with it, and with few others, or the aggregator
    lies, and nobody can tell: both go, but each with one other at most. So whoever cheats costs one honest member its
    place, and itself its own (BTARD section 4.7).
    """
    lacked = Counter(owner for body in results.values() for owner in set(body.silent))
    could = Counter(one for body in reveals.values() for one in set(body.delivered))
    gone, disputes = dict[int, tuple[int, int]](), list[tuple[int, int]]()
    for part, owner in complaints(members, results):
        if 2 * could[part, owner] > len(members) >= 2 * lacked[owner]:
            disputes.append((part, owner))
        else:
            gone.setdefault(owner, (part, owner))
    for part, owner in disputes:
        if part not in gone and owner not in gone:
            gone[part] = gone[owner] = part, owner
    return gone


def require_delivery(record: AttemptRecord, reveals: Mapping[PeerId, Revealed], witness: CaseBuilder) -> None:
    """A member that revealed something else than it had committed to goes, and so do those that withheld a part.

    Raises `AttemptFailed`.
    """
    coin, results = record.terms.coin, record.results
    if closed := [peer for peer, body in reveals.items() if not coin.opens(results[peer].coin, peer, body.reveal)]:
        raise AttemptFailed(map(witness.unopened, closed))
    if gone := who_withheld(record.terms.members, results, reveals):
        raise AttemptFailed(witness.undelivered(rank, part, owner) for rank, (part, owner) in gone.items())


def require_shown(record: AttemptRecord, confirms: Mapping[PeerId, Confirm], witness: CaseBuilder) -> None:
    """Who has not shown most others what has to be computed again has to go: raises `AttemptFailed`."""
    members = record.terms.members
    lacking = Counter(one for body in confirms.values() for one in set(body.lacking))
    gone = {owner: part for (part, owner), count in sorted(lacking.items()) if 2 * count > len(members)}
    if gone := {owner: part for owner, part in gone.items() if owner in record.terms.contributors}:
        raise AttemptFailed(witness.hidden(part, owner) for owner, part in gone.items())


def require_values(record: AttemptRecord, witness: CaseBuilder) -> None:
    """Whose aggregate most could not get has to go, and who cannot get what most have needs their state.

    Raises `AttemptFailed`, and `OutvotedError` if that is this member.
    """
    lacking = Counter(part for body in record.claims.values() for part in set(body.missing))
    terms = record.terms
    if gone := [part for part, count in lacking.items() if 2 * count > len(terms.members)]:
        raise AttemptFailed(map(witness.unobtainable, gone))
    if any(part not in record.values for part in terms.division.parts):
        raise OutvotedError("most others have an aggregate that this peer cannot get", round=terms.step)
    if behind := [peer for peer, body in record.claims.items() if body.missing]:
        # they cannot go on, and without their claims nothing can be checked
        raise AttemptFailed(map(witness.behind, behind))


def _named_by_most(terms: Terms, named: Iterable[Iterable[str]]) -> frozenset[str]:
    """Whom more than half of the members name; `named` is what each of them says."""
    counts = Counter(peer for names in named for peer in set(names))
    return frozenset(peer for peer, count in counts.items() if 2 * count > len(terms.members))
