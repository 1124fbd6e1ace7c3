"""The list of members: who belongs to a secure run at a step, who is on probation, who was banned, and why.

Theory of operation. All honest members have the same list at the same step, because it changes only by what all of
them agree upon, at the boundary between two attempts or two steps; each commitment holds its digest. A ban is for
ever. Whoever is *away* (it committed nothing, which is no offence) is removed without blame.

Members are in the order of their ids; a member's place in that order is its *rank* of the step.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from minga.network._interface import PeerId

_LABEL = b"minga secure ledger 1"


class Reason(enum.StrEnum):
    """Why somebody was banned; see the table of ban rules in `docs/guarantees.md`."""

    SILENT = "it did not say what was due, or nothing that makes sense, after it had committed itself"
    EQUIVOCATED = "it signed two different statements where one was due"
    UNDELIVERED = "what it committed to could be had from nobody"
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


class Ledger:
    """The members of a run and the bans so far."""

    def __init__(self, members: Iterable[PeerId]) -> None:
        self._members = sorted(set(members))
        self.bans: dict[PeerId, Ban] = {}

    @property
    def members(self) -> tuple[PeerId, ...]:
        """All members by rank."""
        return tuple(self._members)

    def rank(self, peer: PeerId) -> int:
        """A member's place. Raises `KeyError` if it is none."""
        place = bisect.bisect_left(self._members, peer)
        if place == len(self._members) or self._members[place] != peer:
            raise KeyError(peer)
        return place

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    def ban(self, peer: PeerId, step: int, reason: Reason) -> Ban | None:
        """Remove a member for ever; None if it is none (any more)."""
        if peer not in self:
            return None
        self._members.remove(peer)
        ban = self.bans[peer] = Ban(peer, step, reason)
        return ban

    def remove(self, peer: PeerId) -> None:
        """Take a member that went away off the list, without blame."""
        if peer in self:
            self._members.remove(peer)

    @property
    def digest(self) -> bytes:
        """32 bytes that are equal for equal lists."""
        return blake3(_LABEL + msgspec.msgpack.encode((self._members, sorted(self.bans)))).digest()
