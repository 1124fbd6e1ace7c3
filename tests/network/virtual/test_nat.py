"""Hosts behind NATs: who is dialled, who punches holes, who needs a relay, and what the relay is then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minga.core.errors import ConfigurationError, UnreachableError
from minga.network.interface import Address, Connection, Network
from minga.network.virtual.internet import HostSettings, Nat, VirtualInternet, VirtualNetwork
from minga.simulation import run_virtual
from minga.testing import check_network
from minga.testing.suite import join, read_all, stream_pair

pytestmark = pytest.mark.promise("peers-behind-nat-take-part")

RELAY = "https://relay.example"
NONE, ONE_TO_ONE, FULL_CONE, PORT_RESTRICTED, SYMMETRIC = Nat


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    return lambda *args: run_virtual(test(*args))


def behind(nat: Nat, *, relay: str | None = RELAY, **settings: Any) -> HostSettings:
    return HostSettings(nat=nat, relay=relay, **settings)


class World:
    """An internet with a relay, of 1 MB/s unless told otherwise."""

    def __init__(self, bytes_per_s: float = 1e6) -> None:
        self.internet = VirtualInternet(1, idle_timeout_s=5.0)
        self.internet.add_relay(RELAY, bytes_per_s, latency_s=0.03)

    def host(self, nat: Nat, **settings: Any) -> VirtualNetwork:
        return self.internet.host(behind(nat, **settings))


async def transfer_s(connection: Connection, far: Connection, size: int) -> float:
    near, end = await stream_pair(connection, far)
    began_s = asyncio.get_running_loop().time()
    await asyncio.gather(near.write(bytes(size)), end.read_into(memoryview(bytearray(size))))
    return asyncio.get_running_loop().time() - began_s


def test_conformance_through_a_relay() -> None:
    async def main() -> None:
        world = World(4e7)

        async def make(*, dialable: bool = True) -> Network:
            return world.host(SYMMETRIC, dialable=dialable)

        await check_network(make)

    run_virtual(main())


@pytest.mark.parametrize(
    ("dialler", "target", "at_first", "later"),
    [
        (SYMMETRIC, NONE, "direct", "direct"),
        (SYMMETRIC, ONE_TO_ONE, "direct", "direct"),
        (SYMMETRIC, FULL_CONE, "direct", "direct"),
        (NONE, PORT_RESTRICTED, "relayed", "direct"),
        (FULL_CONE, SYMMETRIC, "relayed", "direct"),
        (PORT_RESTRICTED, PORT_RESTRICTED, "relayed", "direct"),
        (PORT_RESTRICTED, SYMMETRIC, "relayed", "relayed"),
        (SYMMETRIC, PORT_RESTRICTED, "relayed", "relayed"),
        (SYMMETRIC, SYMMETRIC, "relayed", "relayed"),
    ],
)
def test_which_pairs_get_a_direct_path(dialler: Nat, target: Nat, at_first: str, later: str) -> None:
    async def main() -> None:
        world = World()
        joined = await join(world.host(dialler), world.host(target))
        assert joined.outgoing.facts().path == joined.incoming.facts().path == at_first
        await asyncio.sleep(2.0)
        assert joined.outgoing.facts().path == joined.incoming.facts().path == later

    run_virtual(main())


@virtually
async def test_without_a_relay_only_those_are_dialled_whose_router_lets_in_and_whose_address_is_known() -> None:
    world = World()
    dialler = world.host(NONE, relay=None)
    for nat in Nat:
        target = world.host(nat, relay=None)
        assert await dialler.can_dial(target.address) == (nat in (NONE, ONE_TO_ONE)), nat
        await target.announce(target.state.public)
        assert await dialler.can_dial(target.address) == nat.lets_in, nat


@virtually
async def test_a_stranger_gets_no_use_of_a_hole_that_is_open_for_a_peer() -> None:
    world = World()
    known, target = world.host(PORT_RESTRICTED), world.host(PORT_RESTRICTED)
    pair = await join(known, target)
    await asyncio.sleep(2.0)
    assert not await known.can_dial(Address(target.peer_id, target.address.direct))
    assert await known.can_dial(target.address)  # through the relay; what the two have stays as it is
    assert pair.outgoing.facts().path == "direct"
    assert (await join(known, target)).outgoing.facts().path == "direct"


@virtually
async def test_all_that_a_relay_carries_shares_its_rate_and_it_adds_its_latency() -> None:
    world = World()
    pairs = [await join(world.host(SYMMETRIC), world.host(SYMMETRIC)) for _ in range(2)]
    times = await asyncio.gather(*(transfer_s(pair.outgoing, pair.incoming, 2_000_000) for pair in pairs))
    assert times == [pytest.approx(4.0, rel=0.05)] * 2
    assert pairs[0].outgoing.facts().round_trip_s == pytest.approx(2 * (0.01 + 0.03 + 0.03 + 0.01))


@virtually
async def test_a_direct_path_that_appears_later_takes_the_place_of_the_relay() -> None:
    world = World()
    target = world.host(SYMMETRIC)
    pair = await join(world.host(SYMMETRIC), target)
    assert await transfer_s(pair.outgoing, pair.incoming, 2_000_000) == pytest.approx(2.0, rel=0.1)
    world.internet.set_nat(target, ONE_TO_ONE)
    await asyncio.sleep(2.0)
    assert pair.outgoing.facts().path == "direct"
    assert await transfer_s(pair.outgoing, pair.incoming, 2_000_000) < 0.1
    world.internet.stop_relay(RELAY)
    await asyncio.sleep(20.0)
    assert not pair.outgoing.is_closed


@virtually
async def test_while_a_relay_is_down_those_that_need_it_are_unreachable_and_then_come_back() -> None:
    world = World()
    first, second = world.host(SYMMETRIC), world.host(SYMMETRIC)
    pair = await join(first, second)
    world.internet.stop_relay(RELAY)
    await asyncio.sleep(6.0)
    assert pair.outgoing.is_closed
    assert pair.incoming.is_closed
    with pytest.raises(UnreachableError, match="no answer"):
        await first.connect(second.address)
    world.internet.start_relay(RELAY)
    assert (await join(first, second)).outgoing.facts().path == "relayed"


@virtually
async def test_a_relay_that_is_back_before_the_timeout_delivers_what_it_held() -> None:
    world = World()
    pair = await join(world.host(SYMMETRIC), world.host(SYMMETRIC))
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    world.internet.stop_relay(RELAY)
    await near.write(b"held")
    reading = asyncio.ensure_future(read_all(far, 4))
    await asyncio.sleep(3.0)
    assert not reading.done()
    world.internet.start_relay(RELAY)
    assert await reading == b"held"


@virtually
async def test_a_host_learns_of_its_relay_and_its_outer_address_when_the_relay_answers() -> None:
    world = World()
    world.internet.stop_relay(RELAY)
    host = world.host(PORT_RESTRICTED)
    told: list[Address] = []
    host.on_address.add(lambda: told.append(host.address))
    assert host.address.relay is None
    assert host.state.public not in host.address.direct
    world.internet.start_relay(RELAY)
    assert told == [host.address]
    assert host.address.relay == RELAY
    assert host.state.public in host.address.direct


@virtually
async def test_peers_see_a_host_at_one_port_unless_its_nat_is_symmetric_and_not_at_all_over_a_relay() -> None:
    world = World()
    others = [world.host(NONE) for _ in range(2)]
    seen = {
        nat: [(await join(host, other)).incoming.seen_at for other in others]
        for nat in Nat
        if (host := world.host(nat))
    }
    assert all(len(set(places)) == (2 if nat is SYMMETRIC else 1) for nat, places in seen.items())
    assert (await join(world.host(SYMMETRIC), world.host(SYMMETRIC))).incoming.seen_at is None


@virtually
async def test_a_stranger_gets_through_a_relay_that_the_address_names_and_only_while_it_is_up() -> None:
    world = World()
    host, stranger = world.host(SYMMETRIC), world.host(SYMMETRIC)
    assert not await stranger.can_dial(Address(host.peer_id, host.address.direct))
    assert await stranger.can_dial(Address(host.peer_id, (), RELAY))
    assert await host.can_dial(Address(host.peer_id, (), RELAY))  # the host itself, as a stranger would
    world.internet.stop_relay(RELAY)
    assert not await host.can_dial(Address(host.peer_id, (), RELAY))


@virtually
async def test_wrong_names_of_relays_are_refused() -> None:
    world = World()
    with pytest.raises(ConfigurationError, match=r"there is no relay"):
        world.host(NONE, relay="https://other.example")
    with pytest.raises(ConfigurationError, match="already"):
        world.internet.add_relay(RELAY)
    with pytest.raises(ConfigurationError, match="no relay"):
        world.internet.stop_relay("https://other.example")
