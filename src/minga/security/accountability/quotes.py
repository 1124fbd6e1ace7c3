"""The words that a case of evidence rests on: who said what in its attempt, and that most members knew just that.

Theory of operation. Less than half of the members are hostile. So what at least half of them say, an honest one says.
A set of statements of one phase is the true one if more than half of the members said in the next phase that they knew
exactly that set: two sets with such a majority would share a member that signed twice, and the honest ones would have
noticed. Nothing but that is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from minga.network.interface import PeerId
from minga.security.accountability.proofs import QUOTED, Case, EvidenceError, Proof
from minga.security.accountability.rulings import is_majority
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


_BODIES: Mapping[int, type[Result | Revealed | Claims | Confirm]] = {
    Phase.RESULT: Result,
    Phase.REVEAL: Revealed,
    Phase.CLAIMS: Claims,
    Phase.CONFIRM: Confirm,
    Phase.CHECK: Confirm,
}
"""What is said in the phases in which the members say how they know the phase before."""


@dataclass(frozen=True)
class Transcript:
    """What the members said in an attempt, as far as a proof holds it, by author."""

    commits: dict[PeerId, Commit]
    results: dict[PeerId, Result]
    reveals: dict[PeerId, Revealed]
    claims: dict[PeerId, Claims]
    confirms: dict[PeerId, Confirm]


class Quotes:
    """Those of the members of one case; whatever is wrong with them raises `EvidenceError`, in the case's name."""

    def __init__(self, case: Case, run_id: str) -> None:
        self.case, self.run_id = case, run_id
        self.members = tuple(map(PeerId, case.members))
        self.peer = PeerId(case.peer)
        """The peer that the case is about."""
        self.coin = Coin(run_id, case.step, case.attempt)

    def error(self, message: str) -> EvidenceError:
        """What is wrong with the case."""
        return EvidenceError(message, peer=self.case.peer, round=self.case.step)

    def require(self, holds: bool, message: str) -> None:
        """Raise `EvidenceError` with this message unless something holds."""
        if not holds:
            raise self.error(message)

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

    def transcript(self, proof: Proof) -> Transcript:
        """What a proof holds of the attempt. Of its `known` phases it must have the statements of all members, and
        more than half of them must say in the phase after that they knew exactly these.
        """
        said = {phase: self.said(proof.quoted(phase), phase) for phase in QUOTED}
        for phase in proof.known:
            self.require_all(said[phase])
            later = bodies(said[Phase(phase + 1)], _BODIES[phase + 1]).values()
            count = sum(body.seen == phase_digest(said[phase].values()) for body in later)
            self.require(is_majority(count, self.members), "most members knew other statements than these")
        return Transcript(
            bodies(said[Phase.COMMIT], Commit),
            bodies(said[Phase.RESULT], Result),
            bodies(said[Phase.REVEAL], Revealed),
            bodies(said[Phase.CLAIMS], Claims),
            bodies(said[Phase.CONFIRM], Confirm),
        )

    def require_all(self, said: Mapping[PeerId, object]) -> None:
        """Raise `EvidenceError` unless each member said something."""
        self.require(len(said) == len(self.members), "a member's statement is not there")

    def commit_before(self, statement: Statement, author: PeerId) -> Commit:
        """What a member committed to one step before."""
        slot = statement.slot
        is_there = statement.author == author and slot.phase is Phase.COMMIT and slot.step == self.case.step - 1
        self.require(is_there, "a commitment is not the one of the step before")
        self.require(is_genuine(statement, self.run_id), "a commitment was not signed by its author in this run")
        return read(statement, Commit)


def bodies(said: Mapping[PeerId, Statement], body_type: type[T]) -> dict[PeerId, T]:
    """What statements say, by author. Raises `ProtocolError` if one is malformed."""
    return {peer: read(statement, body_type) for peer, statement in said.items()}
