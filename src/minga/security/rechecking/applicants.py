"""What one member hears from candidates and applicants, and what it says of that to the others.

What strangers can make it keep is bounded: `MAX_APPLICANTS` words of each step, of those with the lowest lots, so that
members who hear many applicants keep the same.
"""

from __future__ import annotations

import contextlib
from typing import Final

from minga.core.errors import ProtocolError
from minga.network.interface import PeerId
from minga.security.protocol.members import Members
from minga.security.protocol.probation import lot
from minga.security.protocol.statement_store import StatementStore
from minga.security.protocol.statements import MAX_CANDIDATES, Candidacy, Phase, Slot, Statement, read

MAX_APPLICANTS: Final = 64


class Applicants:
    """Keeps to `slots`, where statements are when they were found to be genuine."""

    def __init__(self, slots: StatementStore) -> None:
        self._slots = slots
        self._in_time: dict[int, dict[PeerId, bytes | None]] = {}

    def accepts(self, author: PeerId, slot: Slot, membership: Members, coin: bytes) -> bool:
        """Whether to keep what a peer says as candidate or applicant, if it did say that.

        Members may ask what was said, and what they say themselves means nothing.
        """
        if membership.is_barred(author, slot.step):
            return False
        said = self._slots.of(slot)
        if author in membership or author in membership.candidates or author in said:
            return True
        applicants = self._applicants(slot, membership)
        if len(applicants) < MAX_APPLICANTS:
            return True
        return lot(coin, author) < max(lot(coin, peer) for peer in applicants)

    def make_room(self, slot: Slot, membership: Members, coin: bytes) -> None:
        """Forget the applicants with the highest lots where there are too many, after one was kept."""
        applicants = sorted(self._applicants(slot, membership), key=lambda peer: lot(coin, peer))
        for peer in applicants[MAX_APPLICANTS:]:
            self._slots.drop(slot, peer)
            self._in_time.get(slot.step, {}).pop(peer, None)

    def hear(self, statement: Statement) -> None:
        """It came in time."""
        with contextlib.suppress(ProtocolError):  # what makes no sense is not heard
            candidacy = read(statement, Candidacy)
            self._in_time.setdefault(statement.slot.step, {})[statement.author] = candidacy.gradient

    def of(self, step: int) -> dict[PeerId, bytes | None]:
        """Who was heard in time in a step, and what it committed to."""
        said = self._slots.of(Slot(step, 0, Phase.CANDIDACY))
        return {peer: digest for peer, digest in self._in_time.get(step, {}).items() if peer in said}

    def named(self, step: int, membership: Members, coin: bytes) -> tuple[tuple[PeerId, bytes | None], ...]:
        """Those of a step, to be told to the other members."""
        heard = self.of(step)
        candidates = sorted(
            (peer, digest) for peer, digest in heard.items() if peer in membership.candidates and digest
        )
        known = {*membership.members, *membership.candidates}
        others = [peer for peer, digest in heard.items() if digest is None and peer not in known]
        applicants = sorted(others, key=lambda peer: lot(coin, peer))[:MAX_CANDIDATES]
        return (*candidates, *((peer, None) for peer in applicants))

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for old in [old for old in self._in_time if old < step]:
            del self._in_time[old]

    # ---- inner workings

    def _applicants(self, slot: Slot, membership: Members) -> list[PeerId]:
        return [peer for peer in self._slots.of(slot) if peer not in membership.candidates and peer not in membership]
