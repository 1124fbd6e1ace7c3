"""One key is one process: a copy is found out, wherever it enters, and a restart is none."""

from __future__ import annotations

import asyncio

import pytest

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.rpc import handshake
from minga.simulation import run_virtual
from minga.training.record_kinds import Progress
from tests.worlds.board_swarm import RUN, Peer, Swarm, everyone_sees


async def settled_swarm(size: int) -> Swarm:
    swarm = Swarm(3)
    await swarm.grow(size)
    await swarm.until(lambda: everyone_sees(swarm.peers, swarm.peers), 20.0)
    await asyncio.sleep(5.0)
    return swarm


def copy_of(peer: Peer, swarm: Swarm) -> Peer:
    """Another machine with the same key, which has entered nowhere yet."""
    copy = Peer(swarm.internet.host(private_key=peer.network.private_key), swarm)
    swarm.peers.append(copy)
    return copy


def incarnation_seen(viewer: Peer, peer: Peer) -> handshake.Incarnation | None:
    info = viewer.board.get(peer.peer_id, AddressInfo)
    return None if info is None else info.incarnation


def test_a_copy_is_refused_with_a_proof_while_the_first_lives() -> None:
    async def main() -> None:
        swarm = await settled_swarm(3)
        entry, first, other = swarm.peers
        copy = copy_of(first, swarm)
        since = asyncio.get_running_loop().time()
        with pytest.raises(RejectedError, match="in use by another process since 2026-01-01 00:00 UTC") as refused:
            await copy.join(entry)
        assert refused.value.code is RefusalCode.KEY
        assert asyncio.get_running_loop().time() - since < 1.0
        assert copy.gave_way
        proven = handshake.ProofOfLife.proven(refused.value.proof, copy.peer_id, RUN, copy.node.incarnation.nonce)
        assert proven == first.node.incarnation
        await asyncio.sleep(5.0)
        assert all(viewer.kinds("member.l") == [] for viewer in (entry, other))
        assert incarnation_seen(entry, first) == first.node.incarnation
        await swarm.close()

    run_virtual(main(), limit_s=600.0)


def test_a_refusal_without_proof_moves_no_running_peer() -> None:
    async def main() -> None:
        swarm = await settled_swarm(2)
        liar, victim = swarm.peers
        other = (await swarm.add()).node.incarnation
        stranger = handshake.ProofOfLife.signed(
            liar.node._identity, RUN, other, handshake.Challenge(victim.node.incarnation.nonce)
        )
        for proof in (b"", b"nonsense", handshake.msgspec.msgpack.encode(stranger)):
            victim.node._note_refusal(handshake.key_in_use(0.0, proof, liar.peer_id), liar.peer_id)
        assert not victim.gave_way
        assert len(victim.kinds("peer.refused")) == 1
        await swarm.close()

    run_virtual(main(), limit_s=600.0)


@pytest.mark.parametrize("pause_s", [0.2, 4.0])
def test_a_process_that_was_killed_is_back_within_seconds(pause_s: float) -> None:
    """Its connections still seem open to all others."""

    async def main() -> None:
        swarm = await settled_swarm(4)
        entry, victim, *others = swarm.peers
        swarm.internet.kill(victim.network)
        await asyncio.sleep(pause_s)
        since = asyncio.get_running_loop().time()
        again = copy_of(victim, swarm)
        await again.join(entry)
        assert asyncio.get_running_loop().time() - since < 2.5
        living = [entry, *others, again]
        assert await swarm.until(lambda: everyone_sees(living, living), 10.0) < 5.0
        await asyncio.sleep(10.0)
        assert not again.gave_way
        assert all(incarnation_seen(viewer, again) == again.node.incarnation for viewer in living)
        await swarm.close()

    run_virtual(main(), limit_s=600.0)


def test_a_process_that_was_stopped_gets_its_place_back() -> None:
    """Nobody can tell it from a dead one, until it goes on."""

    async def main() -> None:
        swarm = await settled_swarm(4)
        entry, first, *others = swarm.peers
        first.board.put(Progress(7, 0, 1.0, "training"))
        swarm.internet.stall(first.network)
        await asyncio.sleep(5.0)
        copy = copy_of(first, swarm)
        await copy.network.process.run(copy.join(entry))
        assert await swarm.until(lambda: entry.board.is_alive(first.peer_id)) < 5.0
        swarm.internet.resume(first.network)
        assert await swarm.until(lambda: copy.gave_way, 60.0) < 30.0
        living = [entry, *others, first]
        await swarm.until(lambda: everyone_sees(living, living), 30.0)
        await swarm.until(lambda: all(incarnation_seen(v, first) == first.node.incarnation for v in living), 30.0)
        assert not first.gave_way
        await swarm.close()

    run_virtual(main(), limit_s=600.0)
