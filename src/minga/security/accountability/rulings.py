"""The rules: who has to go by what the members said in a phase; the live step and the offline check call the same.

Every rule is a function of the members by rank and of what they said, by author. All members who heard the same come to
the same end. A rule that counts members also holds for a part of the statements, as long as the missing ones could not
change it. Most members are more than half of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from minga.network.interface import PeerId
from minga.security.protocol.members import PendingAccusations, Reason
from minga.security.protocol.statements import MAX_MEMBERS, Charge, Claims, Commit, Confirm, Judgement, Result, Revealed
from minga.security.randomness.coin import Coin

Members = Sequence[PeerId]
Place = tuple[bytes, bytes, bytes]
Complaint = tuple[int, int]
"""(aggregator, owner): the ranks of an aggregator and of the member whose part it could not get."""


def is_majority(count: int, members: Members) -> bool:
    """Whether so many are more than half of the members."""
    return 2 * count > len(members)


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


def who_opened_nothing(
    coin: Coin, results: Mapping[PeerId, Result], reveals: Mapping[PeerId, Revealed]
) -> tuple[PeerId, ...]:
    """Members that revealed another secret of the coin than the one that they had committed to."""
    both = ((peer, results[peer], body) for peer, body in reveals.items() if peer in results)
    return tuple(peer for peer, result, body in both if not coin.opens(result.coin, peer, body.reveal))


def open_complaints(members: Members, results: Mapping[PeerId, Result]) -> list[Complaint]:
    """The complaints that all members look into: nobody is in two of them, neither as aggregator nor as owner.

    So whatever hostile aggregators say, a member looks for fewer parts than there are members, and an owner hands one
    to each of them. What is left out comes again in the next attempt, if its aggregator and its owner do: each
    complaint that is looked into makes somebody go.
    """
    return _weighed(members, results)[1]


def who_withheld(
    members: Members, results: Mapping[PeerId, Result], reveals: Mapping[PeerId, Revealed]
) -> dict[int, Complaint]:
    """The ranks of `members` who go because aggregators could not get parts, each with the complaint that shows it.

    An owner of whom most lacked their parts was late. An aggregator that, beside these, lacks the parts of more than
    half of the members lacks those of an honest one that the others reached: it lies, or is cut off itself. An honest
    one that is not does not come so far, since it waits for the parts until most are there.

    Of the others, what most could not get, its owner owed to all. Where most could get a part when they looked for it,
    either the owner was late with it, and with few others, or the aggregator lies, and nobody can tell: both go. So a
    cheater costs one honest member its place, and itself its own (BTARD section 4.7).
    """
    gone, looked_into = _weighed(members, results)
    could = Counter(one for body in reveals.values() for one in set(body.delivered))
    for part, owner in looked_into:
        gone[owner] = part, owner
        if is_majority(could[part, owner], members):
            gone[part] = part, owner
    return gone


# ---- CLAIMS and CONFIRM


def unobtainable_parts(members: Members, claims: Mapping[PeerId, Claims]) -> list[int]:
    """The parts whose aggregates most could not get: their aggregators go."""
    return [part for part, count in _missing(claims).items() if is_majority(count, members)]


def who_is_behind(members: Members, claims: Mapping[PeerId, Claims]) -> list[PeerId]:
    """Members that lack an aggregate that most have, whatever those say whose claims are not there."""
    missing, absent = _missing(claims), len(members) - len(claims)
    had = {part for part, count in missing.items() if not is_majority(count + absent, members)}
    return [peer for peer, body in claims.items() if had.intersection(body.missing)]


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
) -> tuple[list[tuple[PeerId, Reason]], tuple[PeerId, ...]]:
    """Members and candidates that go over an accusation by what most judge, and the members that judged so.

    If most find it true the accused goes, and a member that covered it; if most find it wrong its author goes.
    """
    accuser, accusation = PeerId(pending.accuser), pending.accusation
    if accusation.charge is Charge.WITHHELD:
        return [], ()
    guilty, innocent = (_who_judges(commits, pending, guilty=guilty) for guilty in (True, False))
    if is_majority(len(guilty), members):
        target = PeerId(accusation.target)
        if accusation.charge is Charge.GRADIENT:
            return [(target, Reason.WRONG_GRADIENT)], guilty
        covering = [] if pending.coverer is None else [(PeerId(pending.coverer), Reason.COVERED)]
        return [(target, Reason.FALSE_CLAIMS), *covering], guilty
    if is_majority(len(innocent), members):
        return [(accuser, Reason.FALSE_ACCUSATION)], innocent
    return [], ()


def withheld(
    members: Members, commits: Mapping[PeerId, Commit], accusations: Iterable[PendingAccusations]
) -> frozenset[PeerId]:
    """Candidates whose gradients most members could not get, or found wrong."""
    return frozenset(
        PeerId(pending.accusation.target)
        for pending in accusations
        if pending.accusation.charge is Charge.WITHHELD
        and is_majority(len(_who_judges(commits, pending, guilty=True)), members)
    )


# ---- inner workings


def _weighed(members: Members, results: Mapping[PeerId, Result]) -> tuple[dict[int, Complaint], list[Complaint]]:
    """Who goes by the complaints alone, whoever can get a part, with a complaint that shows it; and of the other
    complaints those that are looked into.
    """
    said = sorted((members.index(peer), sorted(set(result.silent))) for peer, result in results.items())
    lacked = Counter(owner for _, owners in said for owner in owners)
    late = {owner for owner, count in lacked.items() if is_majority(count, members)}
    gone = {owner: (part, owner) for part, owners in reversed(said) for owner in late.intersection(owners)}
    others = [(part, [owner for owner in owners if owner not in late]) for part, owners in said]
    gone.update({part: (part, owners[0]) for part, owners in others if is_majority(len(owners), members)} | gone)
    taken, found = set(gone), list[Complaint]()
    for part, owners in others:
        owner = next((owner for owner in owners if owner not in taken), None)
        if owner is not None and part not in taken:
            taken.update((part, owner))
            found.append((part, owner))
    return gone, found


def _named_by_most(members: Members, named: Iterable[Iterable[str]]) -> frozenset[PeerId]:
    """The peers that more than half of the members name; `named` is what each of them says."""
    counts = Counter(peer for names in named for peer in set(names))
    return frozenset(PeerId(peer) for peer, count in counts.items() if is_majority(count, members))


def _missing(claims: Mapping[PeerId, Claims]) -> Counter[int]:
    return Counter(part for body in claims.values() for part in set(body.missing))


def _who_judges(commits: Mapping[PeerId, Commit], pending: PendingAccusations, *, guilty: bool) -> tuple[PeerId, ...]:
    said = Judgement(pending.accuser, pending.accusation, guilty)
    return tuple(peer for peer, commit in commits.items() if said in commit.judgements)
