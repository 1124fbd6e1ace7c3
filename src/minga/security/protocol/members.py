"""The list of members: who belongs to a secure run at a step, who is on probation, who was banned, and why.

Theory of operation. All honest members have the same list at the same step, because it changes only by what all of them
agree upon, at the boundary between two attempts or two steps; each commitment holds the digest of the standing, which
it is part of. A ban for a proven lie is for ever. A failure that can be an accident (`LAPSES`), such as silence after a
commitment, suspends: the peer may become a candidate again after `FIRST_SUSPENSION_STEPS` steps, and after twice as
many for each further lapse. So a crash costs a volunteer its seat and never its key, and a peer that falls silent again
and again disturbs about log2 T of T steps. A member that is *away* (it committed nothing, which is no offence) is
removed without blame. Who wants to become a member is a *candidate* first, see `minga.security.protocol.probation`.

Members are in the order of their ids; a member's place in that order is its *rank* of the step.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

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


LAPSES: Final = frozenset({Reason.SILENT, Reason.UNDELIVERED})
"""What a crash or a slow line does as well: no proof of a lie."""
FIRST_SUSPENSION_STEPS: Final = 8
_MOST_DOUBLINGS: Final = 20


@dataclass(frozen=True)
class Ban:
    """Who was banned, at which step, and why. `lapses` counts its suspensions up to this one, if it is one."""

    peer: PeerId
    step: int
    reason: Reason
    lapses: int = 1

    @property
    def until(self) -> int | None:
        """Up to which step the peer is suspended; None for ever."""
        if self.reason not in LAPSES:
            return None
        return self.step + (FIRST_SUSPENSION_STEPS << min(self.lapses - 1, _MOST_DOUBLINGS))

    @property
    def why(self) -> str:
        """The reason, and for how long, in words."""
        return self.reason.value + ("" if self.until is None else f"; suspended until step {self.until}")


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
        self.bans[peer] = Ban(peer, step, reason, self.lapses(peer) + (reason in LAPSES))
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
