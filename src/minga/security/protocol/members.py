"""The list of members: who belongs to a secure run at a step, who is on probation or accused, who was banned, and why.

Theory of operation. All honest members have the same list at the same step, because it changes only by what all of them
agree upon, at the boundary between two attempts or two steps; each commitment holds the digest of the standing, which
it is part of. A ban for a proven lie is for ever. A failure that can be an accident (`LAPSES`), such as silence after a
commitment, suspends: the peer may become a candidate again after `FIRST_SUSPENSION_STEPS` steps, and after twice as
many for each further lapse. So a crash costs a volunteer its seat and never its key, and a peer that falls silent again
and again disturbs about log2 T of T steps. A member that is *away* (it committed nothing, which is no offence) is
removed without blame. Who wants to become a member is a *candidate* first, see the section on candidates.

Members are in the order of their ids; a member's place in that order is its *rank* of the step.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Final, Self

import msgspec

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.statements import (
    MAX_ACCUSATIONS,
    MAX_CANDIDATES,
    MAX_MEMBERS,
    Accusation,
    Charge,
    Commit,
    Peer,
    Step,
)
from minga.security.randomness.coin import derive

MAX_BANS = 2048
"""The oldest are forgotten then: a peer that comes back so late is on probation like everybody."""
MAX_FORMER = 256


class Reason(enum.IntEnum):
    """Why a peer was banned; see the table of ban rules in `docs/guarantees.md`."""

    words: str

    def __new__(cls, code: int, words: str) -> Self:
        """A member is the number that travels, which never changes; `words` are for people."""
        reason = int.__new__(cls, code)
        reason._value_, reason.words = code, words
        return reason

    SILENT = 1, "it did not say what was due, or nothing that makes sense, after it had committed itself"
    EQUIVOCATED = 2, "it signed two different statements where one was due"
    UNDELIVERED = 3, "others say that they could not get what it owes, or most got what it says it could not get"
    WRONG_AGGREGATE = 4, "what it reduced is not the clipped mean of what it got"
    FALSE_CLAIMS = 5, "its projections or norms are not those of what it sent"
    COVERED = 6, "it aggregated a part and kept silent about false claims"
    WRONG_GRADIENT = 7, "what it sent is not the gradient of its public batch"
    FALSE_ACCUSATION = 8, "it accused somebody who had done nothing wrong"


LAPSES: Final = frozenset({Reason.SILENT, Reason.UNDELIVERED})
"""What a crash or a slow line does as well: no proof of a lie."""
FIRST_SUSPENSION_STEPS: Final = 8
_MOST_DOUBLINGS: Final = 20


class Ban(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Who was banned, at which step, and why. `lapses` counts its suspensions up to this one, if it is one."""

    peer: Peer
    step: Step
    reason: Reason
    lapses: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]

    @property
    def until(self) -> int | None:
        """Up to which step the peer is suspended; None for ever."""
        if self.reason not in LAPSES:
            return None
        return self.step + (FIRST_SUSPENSION_STEPS << min(self.lapses - 1, _MOST_DOUBLINGS))

    @property
    def why(self) -> str:
        """The reason, and for how long, in words."""
        return self.reason.words + ("" if self.until is None else f"; suspended until step {self.until}")


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A peer that is on probation since step `since`, and for how many steps most members heard from it in time."""

    peer: Peer
    since: Step
    clean_steps: Step = 0


@loop_bound
class Members:
    """The members of a run, its candidates, the bans so far, and who left without blame and when."""

    def __init__(
        self,
        members: Iterable[PeerId],
        candidates: Iterable[Candidate] = (),
        bans: Iterable[Ban] = (),
        former: Mapping[PeerId, int] | None = None,
    ) -> None:
        self._members = sorted(set(members))
        self.candidates = {PeerId(candidate.peer): candidate for candidate in candidates}
        self.bans = {PeerId(ban.peer): ban for ban in bans}
        """Also suspensions that are over: the next one of the peer is longer."""
        self.former = dict(former or {})
        """The step in which a member that was away left the list."""

    @property
    def members(self) -> tuple[PeerId, ...]:
        """All members by rank."""
        return tuple(self._members)

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    def ban(self, peer: PeerId, step: int, reason: Reason) -> None:
        """Remove a member or candidate, for ever or for the time of its suspension; a ban for ever stays what it is."""
        known = self.bans.get(peer)
        if known is not None and known.until is None:
            return
        self._discard(peer)
        self.bans[peer] = Ban(peer, step, reason, self.lapses(peer) + 1)
        if len(self.bans) > MAX_BANS:
            del self.bans[min(self.bans, key=lambda banned: (self.bans[banned].step, banned))]

    def lapses(self, peer: PeerId) -> int:
        """How many times a peer was suspended."""
        ban = self.bans.get(peer)
        return 0 if ban is None or ban.until is None else ban.lapses

    def is_barred(self, peer: PeerId, step: int) -> bool:
        """Whether a peer cannot become a candidate in this step."""
        ban = self.bans.get(peer)
        return ban is not None and (ban.until is None or step < ban.until)

    def remove(self, peer: PeerId, step: int) -> None:
        """Take a member that went away off the list, without blame."""
        if peer in self:
            self._discard(peer)
            self.former[peer] = step
            if len(self.former) > MAX_FORMER:
                del self.former[min(self.former, key=lambda gone: (self.former[gone], gone))]

    def leave(self, peer: PeerId, step: int, reason: Reason | None) -> bool:
        """A peer has to go, without blame if there is no reason; whether that changed anything.

        A peer that is found to have lied is banned also if it was suspended or went away meanwhile: neither silence nor
        absence must be cheaper than what it hides.
        """
        ban = self.bans.get(peer)
        is_absent = peer in self.former if ban is None else ban.until is not None
        escapes = is_absent and reason is not None and reason not in LAPSES
        if peer not in self and peer not in self.candidates and not escapes:
            return False
        if reason is None:
            self.remove(peer, step)
        else:
            self.ban(peer, step, reason)
        return True

    def admit(self, peer: PeerId) -> None:
        """Make a candidate a member."""
        self.candidates.pop(peer, None)
        self.former.pop(peer, None)
        bisect.insort(self._members, peer)

    def _discard(self, peer: PeerId) -> None:
        self.candidates.pop(peer, None)
        if peer in self:
            self._members.remove(peer)


# ---- Candidates: how a peer that was not there from the start becomes a member (BTARD section 8).
#
#     applicant ── named by most ──▶ candidate ── clean steps, as many as the probation has ──▶ member
#
# A candidate computes the gradient of its own public batch in each step and commits to it, but it weighs nothing, and
# it neither aggregates, validates nor votes. Validators draw it like a member. So a seat costs as much computing as a
# member does anyway, for many steps and under the risk of being caught: an owner of one machine cannot earn two seats.
#
# Time. What a candidate commits to in step t counts if most members heard it before they revealed their secrets of the
# coin of step t + 1, out of which the targets are drawn; they name it in their commitments of step t + 2, and all
# decide at the end of that. So it has a whole step more than members, and nobody ever waits for it. Whom most did not
# hear is a candidate no more, and may apply again. That is all that a silent candidate causes.
#
# A member that was away was on probation before; its next one is `FORMER_SHARE` times shorter. More seats at a time
# than machines it cannot hold by that: as a member, too, it is looked at in each step. The same holds after a
# suspension; with each further one the probation is twice as long.
#
# Who may be a candidate is drawn among the applicants by the coin. An owner of many ids has many lots: a run in which
# strangers flood the list of applicants needs another gate before this one.


CANDIDACY_LAG: Final = 2
"""Steps from a candidate's gradient to the end of the step in which members decide about it."""
FORMER_SHARE: Final = 3
_MEMBERS_PER_CANDIDATE: Final = 2
_PROBATION_MOST_DOUBLINGS: Final = 10


def candidate_limit(members: int) -> int:
    """How many candidates there may be beside so many members."""
    room = MAX_MEMBERS - members
    return max(0, min(MAX_CANDIDATES, room, max(1, members // _MEMBERS_PER_CANDIDATE)))


def probation_of(peer: PeerId, membership: Members, probation_steps: int) -> int:
    """Clean steps that a candidate needs in a run in which strangers need `probation_steps`."""
    if lapses := membership.lapses(peer):
        return max(1, probation_steps // FORMER_SHARE) << min(lapses - 1, _PROBATION_MOST_DOUBLINGS)
    return max(1, probation_steps // FORMER_SHARE) if peer in membership.former else probation_steps


def lot(coin: bytes, peer: PeerId) -> bytes:
    """What decides between applicants: the lowest come first."""
    return derive(coin, "applicant", peer)


def heard_by_most(members: Sequence[PeerId], commits: Mapping[PeerId, Commit]) -> dict[PeerId, bytes | None]:
    """The candidates and applicants that most members heard in time two steps before that of these commitments, and
    what those committed to.
    """
    named = Counter(entry for commit in commits.values() for entry in commit.heard)
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


# ---- Pending accusations: made in the commitments of one step, to be decided in the next.
#
# Accusations that oblige no member to look into them are ignored: they would cost their authors nothing. When there
# are more than `MAX_CHARGES`, each member's first accusation counts before any member's second one.


MAX_CHARGES: Final = 64
"""Of one step; there are more only if many members accuse others in vain, who are soon gone."""


class PendingAccusations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An accusation of the last step, which the judges decide in this one; `coverer` aggregated the part that it is
    about and kept silent.
    """

    accuser: Peer
    accusation: Accusation
    coverer: Peer | None = None


def charges(
    record: AttemptRecord, voters_before: tuple[PeerId, ...], counts: Callable[[PeerId, Accusation], bool]
) -> tuple[PendingAccusations, ...]:
    """What the commitments of a step accuse others of, as far as it `counts`; `voters_before` were the members of the
    step before, by rank.
    """
    counted = {
        accuser: [accusation for accusation in commit.accusations if counts(accuser, accusation)]
        for accuser, commit in sorted(record.commits.items())
    }
    found = [
        PendingAccusations(
            accuser,
            accusations[turn],
            coverer(record.commits, accusations[turn], record.terms.step, voters_before),
        )
        for turn in range(MAX_ACCUSATIONS)
        for accuser, accusations in counted.items()
        if turn < len(accusations)
    ]
    return tuple(found[:MAX_CHARGES])


def coverer(
    commits: Mapping[PeerId, Commit], accusation: Accusation, step: int, voters_before: Sequence[str]
) -> PeerId | None:
    """The member that aggregated the part that an accusation of false claims is about, and kept silent about them.

    `commits` are those of `step`, `voters_before` were the members of the step before, by rank. An aggregator whose
    commitment has no room for another accusation may have found the lie, too.
    """
    last = accusation.step == step - 1
    if accusation.charge is not Charge.CLAIMS or not last or accusation.part >= len(voters_before):
        return None
    aggregator = PeerId(voters_before[accusation.part])
    said = commits.get(aggregator)  # None: it is no member any more
    silent = said is not None and accusation not in said.accusations and len(said.accusations) < MAX_ACCUSATIONS
    return aggregator if silent and aggregator != accusation.target else None
