"""The list of members: who belongs to a secure run at a step, who is on probation, who was banned, and why.

Theory of operation. All honest members have the same list at the same step, because it changes only by what all of them
agree upon, at the boundary between two attempts or two steps; each commitment holds the digest of the standing, which
it is part of. A ban is for ever. A member that is *away* (it committed nothing, which is no offence) is removed without
blame. Who wants to become a member is a *candidate* first, see `minga.security.protocol.probation`.

Members are in the order of their ids; a member's place in that order is its *rank* of the step.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.protocol.statements import Peer, Step

MAX_BANS = 2048
"""The oldest are forgotten then: a peer that comes back so late is on probation like everybody."""
MAX_FORMER = 256
_LABEL = b"minga secure ledger 2"


class Reason(enum.StrEnum):
    """Why a peer was banned; see the table of ban rules in `docs/guarantees.md`."""

    SILENT = "it did not say what was due, or nothing that makes sense, after it had committed itself"
    EQUIVOCATED = "it signed two different statements where one was due"
    UNDELIVERED = "most could not get what it committed to, or could get what it says it could not"
    WRONG_AGGREGATE = "what it reduced is not the clipped mean of what it got"
    FALSE_CLAIMS = "its projections or norms are not those of what it sent"
    COVERED = "it aggregated a part and kept silent about false claims"
    WRONG_GRADIENT = "what it sent is not the gradient of its public batch"
    FALSE_ACCUSATION = "it accused somebody who had done nothing wrong"


@dataclass(frozen=True)
class Ban:
    """Who was banned, at which step, and why."""

    peer: PeerId
    step: int
    reason: Reason


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
        self.bans = {ban.peer: ban for ban in bans}
        self.former = dict(former or {})
        """The step in which a member that was away left the list."""

    @property
    def members(self) -> tuple[PeerId, ...]:
        """All members by rank."""
        return tuple(self._members)

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    def ban(self, peer: PeerId, step: int, reason: Reason) -> None:
        """Remove a member or candidate for ever, and let nobody else of that id in, unless it is banned already."""
        if peer in self.bans:
            return
        self._discard(peer)
        self.bans[peer] = Ban(peer, step, reason)
        if len(self.bans) > MAX_BANS:
            del self.bans[min(self.bans, key=lambda banned: (self.bans[banned].step, banned))]

    def remove(self, peer: PeerId, step: int) -> None:
        """Take a member that went away off the list, without blame."""
        if peer in self:
            self._discard(peer)
            self.former[peer] = step
            if len(self.former) > MAX_FORMER:
                del self.former[min(self.former, key=lambda gone: (self.former[gone], gone))]

    def admit(self, peer: PeerId) -> None:
        """Make a candidate a member."""
        self.candidates.pop(peer, None)
        self.former.pop(peer, None)
        bisect.insort(self._members, peer)

    def _discard(self, peer: PeerId) -> None:
        self.candidates.pop(peer, None)
        if peer in self:
            self._members.remove(peer)

    @property
    def digest(self) -> bytes:
        """32 bytes that are equal for equal lists."""
        candidates = sorted(self.candidates.values(), key=lambda candidate: candidate.peer)
        lists = (self._members, candidates, sorted(self.bans), sorted(self.former.items()))
        return blake3(_LABEL + msgspec.msgpack.encode(lists)).digest()
