"""Candidates: how a peer that was not there from the start becomes a member (BTARD section 8).

    applicant ── named by most ──▶ candidate ── clean steps, as many as the probation has ──▶ member

A candidate computes the gradient of its own public batch in each step and commits to it, but it weighs nothing, and it
neither aggregates, validates nor votes. Validators draw it like a member. So a seat costs as much computing as a member
does anyway, for many steps and under the risk of being caught: an owner of one machine cannot earn two seats.

Time. What a candidate commits to in step t counts if most members heard it before they revealed their secrets of the
coin of step t + 1, out of which the targets are drawn; they name it in their commitments of step t + 2, and all decide
at the end of that. So it has a whole step more than members, and nobody ever waits for it. Whom most did not hear is a
candidate no more, and may apply again. That is all that a silent candidate causes.

A member that was away was on probation before; its next one is `FORMER_SHARE` times shorter. More seats at a time
than machines it cannot hold by that: as a member, too, it is looked at in each step. The same holds after a suspension;
with each further one the probation is twice as long.

Who may be a candidate is drawn among the applicants by the coin. An owner of many ids has many lots: a run in which
strangers flood the list of applicants needs another gate before this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.members import Candidate, Members
from minga.security.protocol.statements import MAX_CANDIDATES, MAX_MEMBERS, Commit
from minga.security.randomness.coin import derive

CANDIDACY_LAG: Final = 2
"""Steps from a candidate's gradient to the end of the step in which members decide about it."""
FORMER_SHARE: Final = 3
_MEMBERS_PER_CANDIDATE: Final = 2
_MOST_DOUBLINGS: Final = 10


def candidate_limit(members: int) -> int:
    """How many candidates there may be beside so many members."""
    room = MAX_MEMBERS - members
    return max(0, min(MAX_CANDIDATES, room, max(1, members // _MEMBERS_PER_CANDIDATE)))


def probation_of(peer: PeerId, membership: Members, probation_steps: int) -> int:
    """Clean steps that a candidate needs in a run in which strangers need `probation_steps`."""
    if lapses := membership.lapses(peer):
        return max(1, probation_steps // FORMER_SHARE) << min(lapses - 1, _MOST_DOUBLINGS)
    return max(1, probation_steps // FORMER_SHARE) if peer in membership.former else probation_steps


def lot(coin: bytes, peer: PeerId) -> bytes:
    """What decides between applicants: the lowest come first."""
    return derive(coin, "applicant", peer)


def heard_by_most(members: Sequence[PeerId], commits: Mapping[PeerId, Commit]) -> dict[PeerId, bytes | None]:
    """The candidates and applicants that most members heard in time two steps before that of these commitments, and
    what those committed to.
    """
    named = Counter(entry for commit in commits.values() for entry in set(commit.heard))
    return {PeerId(peer): digest for (peer, digest), count in named.items() if 2 * count > len(members)}


def is_due(candidate: Candidate, step: int) -> bool:
    """Whether the members decide about a candidate at the end of a step."""
    return step - CANDIDACY_LAG >= candidate.since


def has_passed(
    peer: PeerId, membership: Members, step: int, heard: Mapping[PeerId, bytes | None], probation_steps: int
) -> bool:
    """Whether a candidate's probation is over with the step that has this list of members."""
    candidate = membership.candidates.get(peer)
    if candidate is None or not is_due(candidate, step) or heard.get(peer) is None:
        return False
    return candidate.clean_steps + 1 >= probation_of(peer, membership, probation_steps)


def review(
    membership: Members,
    record: AttemptRecord,
    probation_steps: int,
    held: Collection[PeerId] = (),
    withheld: Collection[PeerId] = (),
) -> tuple[PeerId, ...]:
    """Change the list of candidates, and of members, by what all said in a step that is over; who was admitted.

    A candidate that is `held` stands accused and is not admitted. One whose gradient was `withheld` is dropped.
    """
    heard, step = heard_by_most(record.terms.members, record.commits), record.terms.step
    admitted = []
    for peer, candidate in sorted(membership.candidates.items()):
        if peer in withheld or (is_due(candidate, step) and heard.get(peer) is None):
            del membership.candidates[peer]
        elif peer not in held and has_passed(peer, membership, step, heard, probation_steps):
            admitted.append(peer)
            membership.admit(peer)
        elif is_due(candidate, step):
            membership.candidates[peer] = msgspec.structs.replace(candidate, clean_steps=candidate.clean_steps + 1)
    _welcome(membership, record, heard)
    return tuple(admitted)


def _welcome(membership: Members, record: AttemptRecord, heard: dict[PeerId, bytes | None]) -> None:
    """Applicants become candidates as far as there is room; the coin draws them."""
    room = max(0, candidate_limit(len(membership.members)) - len(membership.candidates))
    strangers = [
        peer
        for peer, digest in heard.items()
        if digest is None
        and peer not in membership
        and peer not in membership.candidates
        and not membership.is_barred(peer, record.terms.step + 1)
    ]
    for peer in sorted(strangers, key=lambda peer: lot(record.randomness, peer))[:room]:
        membership.candidates[peer] = Candidate(peer, record.terms.step + 1)
