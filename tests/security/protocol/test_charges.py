"""Accusations that wait for a decision: accusers who risk nothing cannot keep those of others from being decided."""

from __future__ import annotations

import msgspec
import pytest

from minga.averaging.codecs.layout import VectorLayout
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import MAX_CHARGES, Candidate, charges, heard_by_most
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.protocol.statements import (
    MAX_ACCUSATIONS,
    Accusation,
    Charge,
    Commit,
    Phase,
    Slot,
    Statement,
    state,
)
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

STEP = 5


def peer(number: int) -> PeerId:
    return PeerId(f"{number:064x}")


def accusations(charge: Charge, count: int = MAX_ACCUSATIONS) -> tuple[Accusation, ...]:
    return tuple(Accusation(STEP - 2, peer(100 + index), charge) for index in range(count))


def record_of(said: dict[PeerId, tuple[Accusation, ...]], members: tuple[PeerId, ...] = ()) -> AttemptRecord:
    """Of a step in whose commitments members accused others."""
    rules = Rules.of(layout := VectorLayout((100,), "float32"), SecureSettings())
    division = EqualParts.equal(layout, max(1, len(members)))
    terms = Terms(RUN_ID, STEP, 0, members, frozenset(), division, rules)
    record = AttemptRecord(terms, PartStore((), ()))
    commits = {who: Commit(bytes(32), bytes(32), bytes(32), None, found) for who, found in said.items()}
    record.hear(Phase.COMMIT, {}, commits)
    return record


@virtually
async def test_accusations_that_nobody_looks_into_take_no_place() -> None:
    member = SecureSwarm(4, lambda: Quadratic(20)).peers["p0"].member
    counts = member._register.counts
    candidates = {peer(100 + index): Candidate(peer(100 + index), 0) for index in range(2)}
    honest = (Accusation(STEP - 1, peer(3), Charge.GRADIENT),)
    idle = {peer(1): accusations(Charge.WITHHELD), peer(2): accusations(Charge.GRADIENT, 2)}
    record = record_of({**idle, peer(50): honest})
    found = charges(record, (), lambda *accused: counts(*accused, record, candidates))
    assert [(PeerId(one.accuser), one.accusation) for one in found] == [(peer(50), *honest)]


def test_the_first_accusation_of_everybody_comes_before_anybodys_second() -> None:
    colluders = {peer(number): accusations(Charge.CLAIMS) for number in range(1, 33)}
    honest = (Accusation(STEP - 1, peer(3), Charge.GRADIENT),)
    found = charges(record_of({**colluders, peer(50): honest}), (), lambda *_: True)
    assert len(found) == MAX_CHARGES
    assert [one.accusation for one in found if one.accuser == peer(50)] == [*honest]
    assert [PeerId(one.accuser) for one in found[:33]] == [*map(peer, range(1, 33)), peer(50)]


class AnyCommit(Commit):
    """A commitment as a hostile member can sign one."""

    def __post_init__(self) -> None:
        """Nothing is refused."""


def commitment(author: Identity, *roots: bytes | None, candidate: PeerId) -> Statement:
    """It names one candidate as often as there are roots."""
    heard = tuple((candidate, root) for root in roots)
    return state(author, RUN_ID, Slot(STEP, 0, Phase.COMMIT), AnyCommit(*[bytes(32)] * 4, heard=heard))


@pytest.mark.parametrize("second", [bytes(32), bytes([2]) * 32, None], ids=["the same", "another", "none"])
def test_who_names_a_candidate_twice_says_nothing(second: bytes | None) -> None:
    """Else what candidates committed to would follow from the order of a set, where they told some one root and others
    another one: with the hostile members both have a majority.
    """
    authors, candidate = [Identity.from_seed(bytes([number]) * 32) for number in range(10)], peer(100)
    record = record_of({}, tuple(PeerId(author.peer_id) for author in authors))
    one, other = bytes(32), bytes([3]) * 32
    said = [
        *(commitment(author, one, second, candidate=candidate) for author in authors[:4]),
        *(commitment(author, one, candidate=candidate) for author in authors[4:7]),
        *(commitment(author, other, candidate=candidate) for author in authors[7:]),
    ]
    understood = [record.terms.understood(statement) for statement in said]
    assert [body is None for body in understood] == [True] * 4 + [False] * 6
    commits = {statement.author: body for statement, body in zip(said, understood, strict=True) if body is not None}
    assert heard_by_most(record.terms.members, commits) == {}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        msgspec.structs.replace(Commit(*[bytes(32)] * 4), heard=((candidate, one), (candidate, second)))
