"""The words that a case of evidence rests on: who said what in its attempt, and that most members knew just that.

Theory of operation. Less than half of the members are hostile. So whatever at least half of them say, an honest one
says. A set of statements of one phase is the true one if more than half of the members said in the next phase that they
knew exactly that set: two sets with such a majority would share a member that signed twice, and the honest ones would
have noticed. Nothing but that is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from minga.network.interface import PeerId
from minga.security.accountability.proofs import Case, EvidenceError
from minga.security.protocol.statement_store import phase_digest
from minga.security.protocol.statements import (
    Claims,
    Commit,
    Confirm,
    Phase,
    Result,
    Revealed,
    Slot,
    Statement,
    is_genuine,
    read,
)
from minga.security.randomness.coin import Coin

T = TypeVar("T")


class Quotes:
    """Those of the members of one case; whatever is wrong with them raises `EvidenceError`, in the case's name."""

    def __init__(self, case: Case, run_id: str) -> None:
        self.case, self.run_id = case, run_id
        self.members = tuple(map(PeerId, case.members))
        self.peer = PeerId(case.peer)
        """Whom the case is about."""
        self.coin = Coin(run_id, case.step, case.attempt)

    def error(self, message: str) -> EvidenceError:
        """What is wrong with the case."""
        return EvidenceError(message, peer=self.case.peer, round=self.case.step)

    def require(self, holds: bool, message: str) -> None:
        """Raise `EvidenceError` with this message unless something holds."""
        if not holds:
            raise self.error(message)

    def is_majority(self, count: int) -> bool:
        """Whether so many are more than half of the members."""
        return 2 * count > len(self.members)

    def member(self, rank: int) -> PeerId:
        """The member of a rank."""
        self.require(rank < len(self.members), "there is no member of that rank")
        return self.members[rank]

    def said(self, statements: Iterable[Statement], phase: Phase) -> dict[PeerId, Statement]:
        """Statements of a phase of the attempt, by author; all of members, and one of each."""
        slot = Slot(self.case.step, self.case.attempt, phase)
        said: dict[PeerId, Statement] = {}
        for statement in statements:
            author = statement.author
            self.require(statement.slot == slot, "a statement belongs elsewhere")
            self.require(author in self.members, "a statement is not a member's")
            self.require(author not in said, "two statements are of one member")
            self.require(is_genuine(statement, self.run_id), "a statement was not signed by its author in this run")
            said[author] = statement
        return said

    def everybody(self, statements: Iterable[Statement], phase: Phase) -> dict[PeerId, Statement]:
        """The same, of all members."""
        said = self.said(statements, phase)
        self.require(len(said) == len(self.members), "a member's statement is not there")
        return said

    def require_known(
        self, said: Mapping[PeerId, Statement], later: Mapping[PeerId, Result | Revealed | Claims | Confirm]
    ) -> None:
        """More than half must have known exactly what was `said`, as they say in the phase after that."""
        digest = phase_digest(said.values())
        count = sum(body.seen == digest for body in later.values())
        self.require(self.is_majority(count), "most members knew other statements than these")

    def commit_before(self, statement: Statement, author: PeerId) -> Commit:
        """What somebody committed to one step before."""
        slot = statement.slot
        is_there = statement.author == author and slot.phase is Phase.COMMIT and slot.step == self.case.step - 1
        self.require(is_there, "a commitment is not the one of the step before")
        self.require(is_genuine(statement, self.run_id), "a commitment was not signed by its author in this run")
        return read(statement, Commit)


def bodies(said: Mapping[PeerId, Statement], body_type: type[T]) -> dict[PeerId, T]:
    """What statements say, by author. Raises `ProtocolError` if one is malformed."""
    return {peer: read(statement, body_type) for peer, statement in said.items()}
