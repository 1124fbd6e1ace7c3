"""What a member does for others with the bytes of an attempt: it ends, and nobody takes the place of others."""

from __future__ import annotations

import asyncio
import functools

import pytest

from minga.network.interface import PeerId
from minga.network.virtual.internet import VirtualInternet
from minga.security.messaging.spread import (
    BRING,
    STAGGER_S,
    PartDelivery,
)
from minga.security.protocol.behaviour import KEPT_STEPS
from tests.worlds import secure_swarm
from tests.worlds.secure_swarm import SecurePeer, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("when-members-are-hostile")

# ---- In a swarm.


@virtually
async def test_nothing_is_served_any_more_of_attempts_that_failed() -> None:
    swarm = SecureSwarm(5, lambda: Quadratic(50, compute_s=1.0))
    later(3.0, lambda: swarm.internet.kill("p4"))
    ends = await swarm.run(6)
    for peer in swarm.honest[:4]:
        assert ends[peer.name] is None
        assert len(peer.member.membership.members) == 4
        assert not peer.node._served


def never_read(peer: SecurePeer) -> None:
    """Let a peer bring its parts, leave the aggregates on the line, and get them in another way."""
    deliveries, node = peer.member._deliveries, peer.node

    async def hold(aggregator: PeerId, delivery: PartDelivery, data: memoryview) -> None:
        async with node.open(aggregator, BRING, bulk=True) as stream:
            await stream.send(delivery)
            await stream.send_bulk(data)
            await asyncio.Event().wait()

    async def bring(step: int, attempt: int, part: int) -> None:
        store, members = await deliveries._store(step, attempt)
        key = members.index(node.peer_id), part
        if key in store.parts:  # else it is a validator
            node.spawn(hold(members[part], PartDelivery(step, attempt, store.paths[key]), memoryview(store.parts[key])))
        await store.stated.wait()
        await asyncio.sleep(STAGGER_S)
        await deliveries.fetch_value(step, attempt, part, 0.0)

    deliveries.bring = bring  # type: ignore[method-assign]


def test_who_never_reads_keeps_nothing_longer_than_everybody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    internet = functools.partial(VirtualInternet, window_bytes=16 << 10)  # less than an aggregate
    monkeypatch.setattr(secure_swarm, "VirtualInternet", internet)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(4, lambda: Quadratic(120_000, noise=0.0, compute_s=0.5))
        bad = swarm.peers["p0"]
        never_read(bad)
        assert set((await swarm.run(3 * KEPT_STEPS)).values()) == {None}
        held = [peer.node._served.get(bad.peer_id, 0) for peer in swarm.honest if peer is not bad]
        assert 0 < max(held) <= KEPT_STEPS

    run()
