"""The rules: who has to go by what the members said; the live step and the offline check call the same.

`decide` says who has to go before the attempt can go on, from its transcript. **What follows from the words of a phase
follows when the next phase is over**, in which all say by a digest what they heard in this one. So nothing is ever
decided by a phase of which a part was left out: more than half of the members signed what is the whole of it. Only a
member that more than half of the members name as having said two different things goes at once; there, words that are
not heard could add to the names but take none away.

`judge` says who goes when the attempt has passed. Most members are more than half of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord, who_leaves
from minga.security.protocol.members import PendingAccusations, Reason
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.statements import (
    MAX_MEMBERS,
    Charge,
    Claims,
    Commit,
    Confirm,
    Judgement,
    Phase,
    Result,
    Revealed,
)

Members = Sequence[PeerId]
Place = tuple[bytes, bytes, bytes]
Complaint = tuple[int, int]
"""The ranks of a member that could not get something, and of the one that owes it: the owner of a part to its
aggregator, or the aggregator of a part to any member."""
Ruling = dict[PeerId, Reason | None]
"""Who has to go, and why; None if it was away, which is no offence."""


def is_majority(count: int, members: Members) -> bool:
    """Whether so many are more than half of the members."""
    return 2 * count > len(members)


def decide(record: AttemptRecord) -> Ruling:
    """Who has to go by what was said in an attempt so far; empty while it may go on."""
    members = record.terms.members
    if liars := who_equivocated(members, record.commits).intersection(members):
        return dict.fromkeys(sorted(liars), Reason.EQUIVOCATED)
    for phase, _ in pairwise(sorted(record.said)):
        if gone := _by_silence(record, phase) or _by_words(record, phase):
            return gone
    return {}


def judge(record: AttemptRecord, standing: ProtocolState) -> Ruling:
    """Who goes when an attempt has passed, before which the members stood there: by what most found of the accusations
    of the step before, and the candidates that most can prove to have contradicted themselves.
    """
    gone = Ruling()
    for pending in standing.charges:
        for peer, reason in verdict(record.terms.members, record.commits, pending):
            gone.setdefault(peer, reason)
    candidates = {PeerId(candidate.peer) for candidate in standing.candidates}
    for peer in sorted(who_equivocated(record.terms.members, record.commits).intersection(candidates)):
        gone.setdefault(peer, Reason.EQUIVOCATED)
    return gone


def _by_silence(record: AttemptRecord, phase: Phase) -> Ruling:
    """Of whom most heard nothing, or a goodbye; before it has committed itself a member is just away."""
    members, reason = record.terms.members, None if phase is Phase.COMMIT else Reason.SILENT
    gone: Ruling = {peer: reason for peer in members if peer not in record.said[phase]}
    if phase is Phase.COMMIT:
        gone |= dict.fromkeys(sorted(who_stands_elsewhere(members, record.commits) | who_leaves(record.commits)))
        gone |= dict.fromkeys(sorted(who_kept_silent(members, record.commits)), Reason.SILENT)
    return gone


def _by_words(record: AttemptRecord, phase: Phase) -> Ruling:
    """Who goes by what was said in a phase, in which nobody was silent."""
    members, terms = record.terms.members, record.terms
    if phase is Phase.REVEAL:
        if closed := who_opened_nothing(record):
            return dict.fromkeys(closed, Reason.SILENT)
        withheld_by = sorted(who_withheld(members, record.results, record.reveals))
        return {members[rank]: Reason.UNDELIVERED for rank in withheld_by}
    if phase is Phase.CLAIMS:
        withheld_by = sorted(who_withheld_aggregates(members, record.claims))
        return {members[rank]: Reason.UNDELIVERED for rank in withheld_by}
    if phase is Phase.CONFIRM:
        hiding = sorted({owner for _, owner in hidden_parts(members, record.confirms)})
        return {members[owner]: Reason.UNDELIVERED for owner in hiding if owner in terms.contributors}
    return {}


# ---- COMMIT


def who_equivocated(members: Members, commits: Mapping[PeerId, Commit]) -> frozenset[PeerId]:
    """Peers of which most members can prove that they said two different things."""
    return _named_by_most(members, (body.equivocators for body in commits.values()))


def who_kept_silent(members: Members, commits: Mapping[PeerId, Commit]) -> frozenset[PeerId]:
    """Members of which most heard nothing in the last phase of the step before."""
    return _named_by_most(members, (body.unheard for body in commits.values())).intersection(members)


def place_of_most(members: Members, commits: Mapping[PeerId, Commit]) -> Place | None:
    """The state, standing and rules that most members have, None if there are none such."""
    places = Counter(body.place for body in commits.values())
    return next((place for place, count in places.items() if is_majority(count, members)), None)


def who_stands_elsewhere(members: Members, commits: Mapping[PeerId, Commit]) -> frozenset[PeerId]:
    """Members that stand elsewhere than most and need the state of these; nobody if most stand nowhere."""
    right = place_of_most(members, commits)
    return frozenset(peer for peer, body in commits.items() if right is not None and body.place != right)


# ---- RESULT and REVEAL


def who_opened_nothing(record: AttemptRecord) -> tuple[PeerId, ...]:
    """Members that revealed another secret of the coin than the one that they had committed to."""
    coin, both = record.terms.coin, ((peer, record.results[peer], body) for peer, body in record.reveals.items())
    return tuple(peer for peer, result, body in both if not coin.opens(result.coin, peer, body.reveal))


def open_complaint(members: Members, results: Mapping[PeerId, Result]) -> Complaint | None:
    """The complaint that all members look into, if there is one. So whatever hostile aggregators say, a member looks
    for one part, and its owner hands that to each.
    """
    return _weighed(members, {peer: body.silent for peer, body in results.items()})[1]


def who_withheld(members: Members, results: Mapping[PeerId, Result], reveals: Mapping[PeerId, Revealed]) -> set[int]:
    """The ranks of `members` who go because aggregators could not get parts.

    An owner of whom most lacked their parts was late. An aggregator that, beside these, lacks the parts of more than
    half of the members lacks those of an honest one that the others reached: it lies, or is cut off itself. An honest
    one that is not does not come so far, since it waits for the parts until most are there.

    If there are none such, one complaint is looked into. What most could not get, its owner owed to all. Where most
    could get a part when they looked for it, either the owner was late with it, and with few others, or the aggregator
    lies, and nobody can tell: both go. So a cheater costs one honest member its place, and itself its own (BTARD
    section 4.7).
    """
    gone, dispute = _weighed(members, {peer: body.silent for peer, body in results.items()})
    if dispute is None:
        return gone
    could = sum(body.delivered == dispute for body in reveals.values())
    return set(dispute) if is_majority(could, members) else {dispute[1]}


# ---- CLAIMS and CONFIRM


def who_withheld_aggregates(members: Members, claims: Mapping[PeerId, Claims]) -> set[int]:
    """The ranks of `members` who go because aggregates did not come: without the claims about them nothing can be
    checked.

    What most lack, its aggregator owed to all. Who lacks, beside that, the aggregates of more than half of the members
    is cut off, or lies. If there are none such, either an aggregator handed its own to some only, or who says that it
    lacks it lies, since it dislikes the coin, and nobody can tell: both go, as in a dispute about a part. So no
    aggregator can take several members' places, and nobody tosses the coin again for nothing.
    """
    gone, dispute = _weighed(members, {peer: body.missing for peer, body in claims.items()})
    return gone if dispute is None else set(dispute)


def hidden_parts(members: Members, confirms: Mapping[PeerId, Confirm]) -> list[tuple[int, int]]:
    """(aggregator, owner) of the parts that have to be computed again and that most could not get: the owners go."""
    lacking = np.zeros((MAX_MEMBERS, MAX_MEMBERS), dtype=np.int32)
    for body in confirms.values():
        for part, owners in dict(body.lacking).items():
            lacking[part] += np.unpackbits(np.frombuffer(owners, dtype=np.uint8), bitorder="little")
    return [(int(part), int(owner)) for part, owner in np.argwhere(2 * lacking > len(members))]


# ---- accusations


def verdict(
    members: Members, commits: Mapping[PeerId, Commit], pending: PendingAccusations
) -> list[tuple[PeerId, Reason]]:
    """Members and candidates that go over an accusation by what most judge.

    If most find it true the accused goes, and a member that covered it; if most find it wrong its author goes.
    """
    accusation = pending.accusation
    if accusation.charge is Charge.WITHHELD:
        return []
    if _most_judge(members, commits, pending, guilty=True):
        target = PeerId(accusation.target)
        if accusation.charge is Charge.GRADIENT:
            return [(target, Reason.WRONG_GRADIENT)]
        covering = [] if pending.coverer is None else [(PeerId(pending.coverer), Reason.COVERED)]
        return [(target, Reason.FALSE_CLAIMS), *covering]
    if _most_judge(members, commits, pending, guilty=False):
        return [(PeerId(pending.accuser), Reason.FALSE_ACCUSATION)]
    return []


def withheld(
    members: Members, commits: Mapping[PeerId, Commit], accusations: Iterable[PendingAccusations]
) -> frozenset[PeerId]:
    """Candidates whose gradients most members could not get, or found wrong."""
    return frozenset(
        PeerId(pending.accusation.target)
        for pending in accusations
        if pending.accusation.charge is Charge.WITHHELD and _most_judge(members, commits, pending, guilty=True)
    )


# ---- inner workings


def _weighed(members: Members, lacked: Mapping[PeerId, Iterable[int]]) -> tuple[set[int], Complaint | None]:
    """Who goes by the complaints alone, whoever can get it; if nobody does, the first complaint, which is a dispute.

    One dispute for each attempt: where lines fail for some seconds many complain of many, and both sides of each would
    go. What is still true of the others comes again in the next attempt.

    `lacked` are the ranks of those that owe a member what it could not get.
    """
    said = {members.index(peer): set(owing) for peer, owing in lacked.items()}
    counts = Counter(owner for owing in said.values() for owner in owing)
    late = {owner for owner, count in counts.items() if is_majority(count, members)}
    gone = late | {rank for rank, owing in said.items() if is_majority(len(owing - late), members)}
    if gone:
        return gone, None
    return gone, min(((rank, owner) for rank, owing in said.items() for owner in owing), default=None)


def _named_by_most(members: Members, named: Iterable[Iterable[str]]) -> frozenset[PeerId]:
    """The peers that more than half of the members name; `named` is what each of them says."""
    counts = Counter(peer for names in named for peer in set(names))
    return frozenset(PeerId(peer) for peer, count in counts.items() if is_majority(count, members))


def _most_judge(
    members: Members, commits: Mapping[PeerId, Commit], pending: PendingAccusations, *, guilty: bool
) -> bool:
    said = Judgement(pending.accuser, pending.accusation, guilty)
    return is_majority(sum(said in commit.judgements for commit in commits.values()), members)
