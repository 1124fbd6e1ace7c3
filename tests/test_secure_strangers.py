"""Strangers at the doors of a secure run: whatever they send costs little, and changes nothing for the others."""

from __future__ import annotations

import asyncio

from secure_world import Quadratic
from swarm_tools import virtually

from minga.averaging._messages import Done
from minga.identity._keys import Identity
from minga.network._node import Node
from minga.security._conduct import Conduct
from minga.security._ledger import Candidate
from minga.security._mesh import PROVE
from minga.security._slots import Equivocation
from minga.security._wire import Candidacy, Phase, Slot, state
from minga.simulation._secure_swarm import RUN_ID, SecureSwarm

SLOT = Slot(0, 0, Phase.CANDIDACY)


def make_swarm(count: int = 4) -> SecureSwarm:
    return SecureSwarm(count, lambda: Quadratic(20))


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def stranger(swarm: SecureSwarm, name: str = "stranger") -> Node:
    """A node that knows the founders, and nothing of the protocol."""
    return swarm._start(swarm._host(name), Conduct()).node


def proof_of(liar: Identity, slot: Slot = SLOT) -> Equivocation:
    one, other = (state(liar, RUN_ID, slot, Candidacy(bytes([byte]) * 32)) for byte in (1, 2))
    return Equivocation(one, other)


@virtually
async def test_proofs_against_strangers_are_neither_kept_nor_handed_on() -> None:
    swarm = make_swarm()
    node, first = stranger(swarm), swarm.peers["p0"]
    for number in range(1, 40):
        for slot in (SLOT, Slot(1 << 40, 0, Phase.CANDIDACY)):
            await node.call(first.peer_id, PROVE, proof_of(identity(number), slot), Done)
    await asyncio.sleep(1.0)
    assert not any(peer.member._mesh.proofs for peer in swarm.honest)


@virtually
async def test_a_proof_against_a_candidate_gets_to_members_who_were_behind() -> None:
    swarm, liar = make_swarm(), identity(1)
    first, *others = swarm.honest
    first.member.ledger.candidates[liar.peer_id] = Candidate(liar.peer_id, 0)
    await stranger(swarm).call(first.peer_id, PROVE, proof_of(liar), Done)
    await asyncio.sleep(1.0)
    assert [len(peer.member._mesh.proofs) for peer in swarm.honest] == [1, 0, 0, 0]
    for peer in others:
        peer.member.ledger.candidates[liar.peer_id] = Candidate(liar.peer_id, 0)
    first.member._mesh.remind(first.member.ledger.members)
    await asyncio.sleep(1.0)
    assert [len(peer.member._mesh.proofs) for peer in swarm.honest] == [1] * 4
    for peer in swarm.honest:
        del peer.member.ledger.candidates[liar.peer_id]
        peer.member._mesh.forget_before(0)
        assert not peer.member._mesh.proofs
