"""Accusations that wait for a decision: accusers who risk nothing cannot keep those of others from being decided."""

from __future__ import annotations

from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import MAX_CHARGES, Candidate, charges
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.protocol.statements import MAX_ACCUSATIONS, Accusation, Charge, Commit, Phase
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
