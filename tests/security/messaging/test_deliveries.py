"""What a member does for others with the bytes of an attempt: it ends, and nobody takes the place of others."""

from __future__ import annotations

import asyncio
import functools

import pytest

from minga.core.errors import RejectedError
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualInternet
from minga.security.messaging.spread import (
    BRING,
    FETCH,
    MAX_FETCHES,
    STAGGER_S,
    FetchPart,
    Found,
    PartDelivery,
)
from minga.security.parts.equal_parts import MerkleTree, digest_of
from minga.security.parts.part_store import PartStore
from minga.security.parts.transfer_limits import LEAST_TRANSFER_S, transfer_limit_s
from minga.security.protocol.behaviour import KEPT_STEPS
from tests.worlds import secure_swarm
from tests.worlds.secure_swarm import SecurePeer, SecureSwarm
from tests.worlds.secure_world import Quadratic, part_holder
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


# ---- Between a few nodes: the first one relays, the others ask it, and the last one owns what they ask for.


class Relay:
    """Members of one attempt, whose last one owns so many `parts`."""

    def __init__(self, askers: int, size: int, parts: int) -> None:
        internet, addresses = VirtualInternet(0), dict[PeerId, Address]()
        hosts = [internet.host(HostSettings()) for _ in range(1 + askers + 1)]
        others = (PeerId(f"{number:064x}") for number in range(len(hosts), parts))
        self.members, self.owner = (*(host.peer_id for host in hosts), *others), askers + 1
        bodies = [bytes([part]) * size for part in range(parts)]
        tree = MerkleTree(list(map(digest_of, bodies)))
        self.nodes, self.stores = list[Node](), list[PartStore]()
        for host in hosts:
            node, store, _ = part_holder(host, addresses, self.members, [size] * parts, self.owner, tree)
            self.nodes.append(node)
            self.stores.append(store)
        self.stores[-1].put_owners(self.owner, dict(enumerate(bodies)), tree)

    async def ask(self, asker: int, part: int) -> bytes:
        """A part from the first member. Raises `RejectedError` if that has none and fetches none."""
        async with self.nodes[asker].open(self.members[0], FETCH, bulk=True) as stream:
            await stream.send(FetchPart(0, 0, part, self.owner, relay=True))
            await stream.receive(Found)
            data = memoryview(bytearray(self.stores[0].part_bytes[part]))
            await stream.receive_bulk_into(data)
            return bytes(data)


@virtually
async def test_who_asks_for_a_part_and_never_reads_it_keeps_it_for_a_while_only() -> None:
    size = 6_000_000
    relay = Relay(1, size, 1)
    assert await relay.ask(1, 0) == bytes(size)
    async with relay.nodes[1].open(relay.members[0], FETCH, bulk=True) as stream:
        await stream.send(FetchPart(0, 0, 0, relay.owner))
        await asyncio.sleep(transfer_limit_s(size) - 1.0)
        assert relay.nodes[0]._served == {relay.members[1]: 1}
        await asyncio.sleep(2.0)
        assert not relay.nodes[0]._served


async def stall(_: PeerId, stream: MessageStream) -> None:
    """Let wait who asks for anything."""
    await stream.receive(FetchPart)
    await asyncio.Event().wait()


@virtually
async def test_nothing_is_fetched_from_its_owner_for_the_owner() -> None:
    relay = Relay(0, 100, 2)
    relay.nodes[relay.owner].serve(FETCH, stall)
    async with asyncio.timeout(1.0):
        with pytest.raises(RejectedError, match="not here"):
            await relay.ask(relay.owner, 0)


@virtually
async def test_who_lets_parts_be_fetched_that_never_come_takes_only_its_own_places() -> None:
    relay = Relay(2, 100, 33)
    owner = relay.nodes[relay.owner]
    serve = owner._handlers[FETCH]
    owner.serve(FETCH, stall)
    asking = [asyncio.ensure_future(relay.ask(1, part)) for part in range(32)]
    await asyncio.sleep(1.0)
    refused = [ask.exception() for ask in asking if ask.done()]
    assert len(refused) == 32 - MAX_FETCHES
    assert all(isinstance(error, RejectedError) for error in refused)
    owner.serve(FETCH, serve)
    assert await relay.ask(2, 32) == bytes([32]) * 100
    await asyncio.sleep(LEAST_TRANSFER_S)
    assert await relay.ask(1, 0) == bytes(100), "its places are free again"
    await asyncio.gather(*asking, return_exceptions=True)
