"""What others see of a peer: taken in when it proves right, and never on the word of a liar alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minga.core.errors import RejectedError
from minga.core.events.bus import Event, EventBus
from minga.core.events.network import AddressSeen
from minga.network.interface import PeerId
from minga.network.rpc import reachability
from minga.network.rpc.node import Node
from minga.network.rpc.reachability import (
    DIAL_ME,
    MAX_DIALS_AT_ONCE,
    Dialled,
    DialMe,
    OwnAddress,
    Reachability,
    SeenAt,
    WhereAmI,
)
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, Nat, VirtualInternet, VirtualNetwork
from tests.worlds.swarm_tools import virtually

ELSEWHERE = "93.184.216.34:4433"


class Peer:
    """A node that answers where it sees others, honestly unless it is a liar."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        events = EventBus(asyncio.get_running_loop().time)
        self.node = Node(network, run_id="r", role="trainer", lookup=lambda _: None, events=events)
        self.own_address = OwnAddress(self.node, Reachability(self.node))
        self.seen: list[tuple[str, bool | None]] = []
        self.published = 0
        events.subscribe(self._note)
        self.node.start()

    def _note(self, event: Event) -> None:
        if isinstance(event.data, AddressSeen):
            self.seen.append((event.data.endpoint, event.data.reached))

    def publish(self) -> None:
        self.published += 1

    def lie(self, endpoint: str, *, reached: bool | None = None) -> None:
        """Claim to see everybody at `endpoint`, and perhaps to have reached everybody everywhere, or nobody."""

        async def claim(_: PeerId, stream: MessageStream) -> None:
            await stream.receive(WhereAmI)
            await stream.send(SeenAt(endpoint))

        async def dialled(_: PeerId, stream: MessageStream) -> None:
            await stream.receive(DialMe)
            await stream.send(Dialled(bool(reached)))

        self.node.serve(reachability.WHERE_AM_I, claim)
        if reached is not None:
            self.node.serve(DIAL_ME, dialled)


async def world(nat: Nat, others: int) -> tuple[Peer, list[Peer]]:
    """A peer behind a NAT that is connected to others, which have public addresses."""
    internet = VirtualInternet(3)
    peer = Peer(internet.host(HostSettings(nat=nat)))
    met = [Peer(internet.host()) for _ in range(others)]
    for other in met:
        await peer.node.dial(other.network.address)
    return peer, met


def move(network: VirtualNetwork, endpoint: str) -> None:
    """Give a host another public address, which its connections outlive."""
    endpoints = network._internet._endpoints  # type: ignore[attr-defined]
    endpoints[endpoint] = endpoints.pop(network.state.public)
    network.state.public = endpoint


@pytest.mark.parametrize(("nat", "dialable"), [(Nat.FULL_CONE, True), (Nat.PORT_RESTRICTED, False)])
def test_an_address_that_a_peer_sees_is_taken_in_once_a_stranger_got_through_there(nat: Nat, dialable: bool) -> None:
    async def main() -> None:
        peer, met = await world(nat, 1)
        public = peer.network.state.public
        peer.own_address.start(peer.publish)
        await asyncio.sleep(10.0)
        assert peer.seen == [(public, dialable)]
        assert (public in peer.network.address.direct) is dialable
        assert peer.published == (1 if dialable else 0)
        assert await met[0].network.can_dial(peer.network.address) is dialable

    virtually(main)()


@virtually
async def test_a_peer_finds_out_before_it_takes_its_role() -> None:
    for nat, expected in [(Nat.FULL_CONE, True), (Nat.SYMMETRIC, False), (Nat.PORT_RESTRICTED, False)]:
        peer, _ = await world(nat, 2)
        assert await peer.own_address.is_dialable() is expected, nat


@virtually
async def test_each_of_many_that_join_at_once_finds_out() -> None:
    """One that took itself for dialable because the others were asked first would lead, and be an aggregator."""
    internet = VirtualInternet(3)
    host = Peer(internet.host())
    joining = [Peer(internet.host(HostSettings(nat=Nat.PORT_RESTRICTED))) for _ in range(3 * MAX_DIALS_AT_ONCE)]
    for peer in joining:
        await peer.node.dial(host.network.address)
    found = await asyncio.gather(*(peer.own_address.is_dialable() for peer in joining))
    assert found == [False] * len(joining)


@virtually
async def test_at_a_symmetric_nat_no_two_peers_agree_and_nothing_is_taken_in() -> None:
    peer, met = await world(Nat.SYMMETRIC, 3)
    for other in met:
        other.node.serve(DIAL_ME, _busy)
    await peer.own_address.learn()
    assert len(peer.seen) == 3
    assert {reached for _, reached in peer.seen} == {None}
    assert len(peer.network.address.direct) == 1


@virtually
async def test_where_nobody_can_try_two_peers_that_agree_are_believed_and_one_is_not() -> None:
    for count in (1, 2):
        peer, met = await world(Nat.FULL_CONE, count)
        for other in met:
            other.node.serve(DIAL_ME, _busy)
        await peer.own_address.learn()
        assert (peer.network.state.public in peer.network.address.direct) is (count == 2)


@virtually
async def test_an_address_that_failed_is_tried_again() -> None:
    """The user, who was told so, opens the port; before that nobody is there who could try."""
    peer, met = await world(Nat.FULL_CONE, 2)
    public = peer.network.state.public
    for answer in (_nobody_got_through, _busy):
        for other in met:
            other.node.serve(DIAL_ME, answer)
        await peer.own_address.learn()
        assert peer.seen == [(public, False)]
        assert public not in peer.network.address.direct
    for other in met:
        Reachability(other.node)
    await peer.own_address.learn()
    assert peer.seen == [(public, False), (public, True)]
    assert public in peer.network.address.direct


@pytest.mark.parametrize("neighbours", [0, 10])
def test_a_new_outer_address_is_learned_though_all_connections_outlive_the_change(neighbours: int) -> None:
    """Neighbours behind the same router, which sends no packets back inside, say truthfully that they got nowhere."""

    async def main() -> None:
        peer, met = await world(Nat.FULL_CONE, 2)
        for number, other in enumerate(met):
            move(other.network, f"8.8.8.{number}:4433")
        peer.node.introduce(other.network.address for other in met)
        for number in range(neighbours):
            near = Peer(peer.network._internet.host())  # type: ignore[attr-defined]
            near.lie("192.168.1.5:4433", reached=False)
            await peer.node.dial(near.network.address)
            move(near.network, f"192.168.1.{number}:4433")
            peer.node.introduce([near.network.address])
        peer.own_address.start(peer.publish)
        await asyncio.sleep(4 * reachability.PROOF_S)
        assert peer.network.state.public in peer.network.address.direct
        assert len(peer.network.ends) == 2 + neighbours, "nobody is dialled anew while the address holds"
        move(peer.network, ELSEWHERE)
        await asyncio.sleep(2 * reachability.PROOF_S)
        assert ELSEWHERE in peer.network.address.direct
        assert peer.published == 2
        assert len(peer.network.ends) == 3 + neighbours
        assert await met[0].network.can_dial(peer.network.address)

    virtually(main)()


@virtually
async def test_a_new_outer_address_is_learned_in_a_network_of_private_addresses() -> None:
    peer, met = await world(Nat.FULL_CONE, 2)  # all at 10.0.0.x
    peer.node.introduce(other.network.address for other in met)
    peer.own_address.start(peer.publish)
    await asyncio.sleep(4 * reachability.PROOF_S)
    assert len(peer.network.ends) == 2, "nobody is dialled anew while the address holds"
    move(peer.network, "10.0.7.7:4433")
    await asyncio.sleep(2 * reachability.PROOF_S)
    assert "10.0.7.7:4433" in peer.network.address.direct


@virtually
async def test_those_who_see_an_address_try_it_where_only_a_neighbour_could_beside_them() -> None:
    peer, met = await world(Nat.FULL_CONE, 1)
    met[0].lie("192.168.1.5:4433", reached=False)
    move(met[0].network, "192.168.1.7:4433")
    peer.own_address.start(peer.publish)
    outside = Peer(peer.network._internet.host())  # type: ignore[attr-defined]
    await peer.node.dial(outside.network.address)
    move(outside.network, "8.8.8.8:4433")
    await asyncio.sleep(10.0)
    assert peer.network.state.public in peer.network.address.direct


@virtually
async def test_liars_who_agree_are_found_out_by_a_peer_that_tries() -> None:
    peer, met = await world(Nat.NONE, 3)
    met[0].lie(ELSEWHERE, reached=True)
    met[1].lie(ELSEWHERE, reached=True)
    await peer.own_address.learn()
    assert peer.network.address.direct == (peer.network.state.public,)
    assert peer.seen == [(ELSEWHERE, False)]


@pytest.mark.parametrize("nonsense", ["127.0.0.1:4433", "224.0.0.1:5", "10.0.0.1:0", "host:44"])
def test_addresses_that_can_be_nobodys_are_not_even_tried(nonsense: str) -> None:
    async def main() -> None:
        peer, met = await world(Nat.FULL_CONE, 2)
        for other in met:
            other.lie(nonsense, reached=True)
        await peer.own_address.learn()
        assert peer.seen == []
        assert len(peer.network.address.direct) == 1

    virtually(main)()


@virtually
async def test_peers_that_do_not_know_the_question_or_never_answer_hold_nothing_up() -> None:
    peer, met = await world(Nat.FULL_CONE, 3)
    met[0].node._handlers.pop(reachability.WHERE_AM_I)
    met[1].node.serve(reachability.WHERE_AM_I, _silent)
    began_s = asyncio.get_running_loop().time()
    await peer.own_address.learn()
    assert asyncio.get_running_loop().time() - began_s < 4.0
    assert peer.seen == [(peer.network.state.public, True)]


@virtually
async def test_a_peer_is_asked_for_a_while_and_then_once_a_minute() -> None:
    peer, _ = await world(Nat.NONE, 0)
    peer.own_address.start(peer.publish)
    asked: list[float] = []
    for _ in range(20):
        other = Peer(peer.network._internet.host())  # type: ignore[attr-defined]
        other.node.serve(reachability.WHERE_AM_I, _counting(asked))
        await other.node.dial(peer.network.address)
        await asyncio.sleep(10.0)
    assert 3 <= len(asked) <= 7


async def _busy(_: PeerId, stream: MessageStream) -> None:
    raise RejectedError("enough others are being tried", code="busy")


async def _nobody_got_through(_: PeerId, stream: MessageStream) -> None:
    await stream.receive(DialMe)
    await stream.send(Dialled(False))


async def _silent(_: PeerId, stream: MessageStream) -> None:
    await stream.receive(WhereAmI)
    await asyncio.sleep(100.0)


def _counting(asked: list[float]) -> Callable[[PeerId, MessageStream], Coroutine[Any, Any, None]]:
    async def answer(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(WhereAmI)
        asked.append(asyncio.get_running_loop().time())
        await stream.send(SeenAt("10.0.0.0:4433"))

    return answer
