"""Swarms whose members count and sign within seconds, and counts that nobody had to train for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from minga.averaging.planning.plan_maker import Divide
from minga.averaging.solver.planner import divide
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.receipts import receipts
from minga.receipts.attestation import Attestation, Claim, Count, JudgedCount, pack
from minga.receipts.book import PeerTotals
from minga.receipts.receipts import Receipts
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from tests.worlds.swarm_tools import make_spec, vector_replica

RUN = "ab" * 32
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 13)]
IDS = [PeerId(key.peer_id) for key in KEYS]


def hurry(patch: pytest.MonkeyPatch, count_s: float = 0.1, sign_s: float = 0.3) -> None:
    """Let all members count and sign so often, for each member of their rounds."""
    patch.setattr(receipts, "COUNT_S", count_s)
    patch.setattr(receipts, "SIGN_S", sign_s)


def make_swarm(
    trainers: int,
    *,
    clients: int = 0,
    auxiliaries: int = 0,
    divide: Divide = divide,
    stop_after_steps: int | None = None,
    numel: int = 4096,
) -> Swarm:
    """Trainers of different speeds; the last `clients` of them cannot be dialled."""
    training = {} if stop_after_steps is None else {"stop_after_steps": stop_after_steps}
    spec = make_spec(8 * trainers, training=training)
    swarm = Swarm(spec, seed=1, make_replica=vector_replica(numel), divide=divide)
    for index in range(trainers):
        host = HostSettings(latency_s=0.005, dialable=index < trainers - clients)
        swarm.add(host, TrainerSettings(2, 0.02 + 0.004 * index))
    for _ in range(auxiliaries):
        swarm.add(HostSettings(latency_s=0.005), auxiliary=True)
    return swarm


def receipts_of(peer: SimulatedPeer) -> Receipts:
    assert isinstance(peer.session.member, Member)
    return peer.session.member.receipts


def totals_at(swarm: Swarm, name: str) -> dict[str, PeerTotals]:
    """What a peer knows to be attested, by the names of peers."""
    return {swarm.name_of(peer): total for peer, total in receipts_of(swarm.peers[name]).totals().items()}


def given(swarm: Swarm) -> Counter[str]:
    """The samples that each peer gave to rounds, by the log."""
    found: Counter[str] = Counter()
    for logged in swarm.log.of("step.applied"):
        found[logged.peer] += int(str(logged.event.fields["samples"]))
    return found


async def sign_all(swarm: Swarm) -> None:
    """No more counts: let each living peer sign what it has not signed yet, and give it to the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receipts, "COUNT_S", 1e9)
        await asyncio.sleep(0.5)  # for the count that may be under way
        for peer in swarm.alive():
            await peer.network.process.run(receipts_of(peer).flush(1.0))
        await asyncio.sleep(0.5)


def make_count(step: int, claims: Sequence[Claim | None], epoch: int = 0) -> Count:
    """A count of the first keys, one for each claim."""
    members = tuple(bytes.fromhex(peer) for peer in IDS[: len(claims)])
    return Count(epoch, step, step.to_bytes(16, "big"), members, tuple(claims))


def sign(
    key: Identity, *counts: Count, doubts: Sequence[int] = (), witness: bool = True, run: str = RUN
) -> Attestation:
    """An attestation with the same doubts about each of these counts."""
    return Attestation.sign(run, key, [JudgedCount(count, pack(doubts), witness) for count in counts])
