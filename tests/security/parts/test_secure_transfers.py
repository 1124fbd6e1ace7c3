"""Parts over slow lines: what takes long because it is long gets there, and nobody waits for who sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from blake3 import blake3

from minga.core.aio import Signal
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualInternet
from minga.security.messaging.spread import FETCH, Deliveries, FetchPart, Found
from minga.security.parts.equal_parts import AT_ONCE_BYTES, MerkleTree, RunningDigest, digest_of
from minga.security.parts.part_store import PartStore
from minga.security.parts.transfer_limits import STALL_S, WaitPolicy, transfer_limit_s, wait_for_all
from tests.worlds.secure_world import part_holder
from tests.worlds.swarm_tools import virtually

SIZE = 6_000_000
RATE_BYTES_PER_S = 200_000.0


def make_pair() -> tuple[Deliveries, PartStore, Node]:
    """A member that wants a part, its store, and the node of the owner, who has a slow line."""
    internet, addresses = VirtualInternet(0), dict[PeerId, Address]()
    hosts = [internet.host(settings) for settings in (HostSettings(), HostSettings(up_bytes_per_s=RATE_BYTES_PER_S))]
    members = tuple(host.peer_id for host in hosts)
    parts = [bytes(SIZE), b"another"]
    tree = MerkleTree(list(map(digest_of, parts)))
    (_, store, deliveries), (node, owned, _) = (
        part_holder(host, addresses, members, [len(part) for part in parts], 1, tree) for host in hosts
    )
    owned.put_owners(1, {0: parts[0]}, tree)
    return deliveries, store, node


@virtually
async def test_a_part_that_takes_long_over_a_slow_line_gets_there() -> None:
    deliveries, store, _ = make_pair()
    begun_s = asyncio.get_running_loop().time()
    await deliveries.fetch_part(0, 0, 0, 1)
    assert (1, 0) in store.parts
    assert SIZE / RATE_BYTES_PER_S <= asyncio.get_running_loop().time() - begun_s <= transfer_limit_s(SIZE)


@virtually
async def test_what_nobody_needs_any_more_does_not_travel_on() -> None:
    """Neither after its own limit, nor after the attempt: with a slow line that would make a peer late."""
    deliveries, store, owner = make_pair()
    begun_s = asyncio.get_running_loop().time()
    await deliveries.fetch_part(0, 0, 0, 1, limit_s=2.0)
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(2.0)
    fetching = asyncio.ensure_future(deliveries.fetch_part(0, 0, 0, 1))
    await asyncio.sleep(2.0)
    assert owner._served
    store.close()
    await asyncio.sleep(1.0)
    assert fetching.done()
    assert not owner._served
    assert not store.parts


@virtually
async def test_nobody_waits_long_for_who_announces_a_part_and_sends_nothing() -> None:
    deliveries, store, owner = make_pair()

    async def stall(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(FetchPart)
        await stream.send(Found())
        await asyncio.Event().wait()

    owner.serve(FETCH, stall)
    begun_s = asyncio.get_running_loop().time()
    await deliveries.fetch_part(0, 0, 0, 1)
    assert not store.parts
    assert asyncio.get_running_loop().time() - begun_s < STALL_S + 5.0


def test_only_bytes_with_the_stated_digest_are_kept() -> None:
    parts = [b"a part", b"another"]
    tree = MerkleTree(list(map(digest_of, parts)))
    store = PartStore([len(part) for part in parts], [5, 5])
    store.roots[0], store.value_digests[1] = tree.root, digest_of(b"value")
    assert not store.put_part(0, 0, parts[1], tree.path(0), digest_of(parts[1]))
    assert not store.put_value(1, b"other", digest_of(b"other"))
    assert not store.put_value(0, b"value", digest_of(b"value"))
    assert store.put_part(0, 1, parts[1], tree.path(1), digest_of(parts[1]))
    assert store.put_value(1, b"value", digest_of(b"value"))
    assert store.parts.keys() == {(0, 1)}
    assert store.values == {1: b"value"}


@pytest.mark.parametrize("size", [1000, AT_ONCE_BYTES, 70_000, 1 << 20])
def test_pieces_have_the_digest_of_the_whole(size: int) -> None:
    whole = bytes(range(256)) * 1400
    target = bytearray(len(whole))
    running = RunningDigest(target)
    for start in range(0, len(whole), size):
        target[start : start + size] = whole[start : start + size]
        running.filled(len(whole[start : start + size]))
    assert running.digest() == digest_of(whole) == blake3(whole).digest()
    assert RunningDigest(b"").digest() == digest_of(b"")


MEMBERS = 4


class Crowd:
    """Members of whom the last owns a part that all others but the first have; counts what the first asks for."""

    def __init__(self, up_bytes_per_s: float) -> None:
        internet, addresses = VirtualInternet(0), dict[PeerId, Address]()
        slow = HostSettings(up_bytes_per_s=up_bytes_per_s)
        hosts = [internet.host(slow if rank == MEMBERS - 1 else HostSettings()) for rank in range(MEMBERS)]
        self.asked = list[int]()
        self.nodes, self.deliveries, self.cargoes = list[Node](), list[Deliveries](), list[PartStore]()
        members = tuple(host.peer_id for host in hosts)
        parts = [bytes(SIZE), b"another"]
        tree = MerkleTree(list(map(digest_of, parts)))
        for rank, host in enumerate(hosts):
            sizes = [len(part) for part in parts]
            node, store, deliveries = part_holder(host, addresses, members, sizes, MEMBERS - 1, tree)
            if rank:
                store.put_owners(MEMBERS - 1, {0: parts[0]}, tree)
            self.nodes.append(node)
            self.deliveries.append(deliveries)
            self.cargoes.append(store)
            self._count(rank)

    def _count(self, rank: int) -> None:
        serve = self.deliveries[rank]._serve_fetch

        async def counted(peer: PeerId, stream: MessageStream) -> None:
            self.asked.append(rank)
            await serve(peer, stream)

        self.nodes[rank].serve(FETCH, counted)

    async def fetch(self, within_s: float) -> None:
        by_s = asyncio.get_running_loop().time() + within_s
        await self.deliveries[0].fetch_part(0, 0, 0, MEMBERS - 1, by_s)
        assert (MEMBERS - 1, 0) in self.cargoes[0].parts


@virtually
async def test_what_comes_in_time_over_a_slow_line_is_not_asked_of_others_too() -> None:
    crowd = Crowd(RATE_BYTES_PER_S)
    await crowd.fetch(2 * SIZE / RATE_BYTES_PER_S)
    assert crowd.asked == [MEMBERS - 1]


@virtually
async def test_what_would_come_too_late_is_asked_of_others() -> None:
    crowd = Crowd(RATE_BYTES_PER_S)
    await crowd.fetch(SIZE / RATE_BYTES_PER_S / 2)
    assert crowd.asked[:2] == [MEMBERS - 1, 1]


@virtually
async def test_what_is_brought_in_time_is_not_asked_for() -> None:
    coming, asked = {1: 5.0, 2: 1e9, 3: 4.0, 4: 4.0, 5: 4.0}, list[tuple[float, list[int]]]()
    loop, lacking, changed = asyncio.get_running_loop(), [1, 2, 3, 4, 5], Signal()
    begun_s = loop.time()

    def come(*which: int) -> None:
        lacking[:] = [one for one in lacking if one not in which]
        changed.fire()

    async def ask(wanted: Sequence[int], by_s: float) -> None:
        asked.append((loop.time() - begun_s, list(wanted)))

    loop.call_later(4.0, come, 3, 4, 5)
    loop.call_later(5.0, come, 1)
    await wait_for_all(
        lambda: list(lacking),
        5,
        changed,
        ask,
        WaitPolicy(),
        is_coming=lambda one, by_s: begun_s + coming[one] <= by_s,
    )
    assert {one for _, wanted in asked for one in wanted} == {2}
    assert asked[0][0] == pytest.approx(4.5)
    assert loop.time() - begun_s == pytest.approx(2 * 4.0 + WaitPolicy().slack_s)
