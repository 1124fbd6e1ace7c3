"""Real packets through routers of each kind of NAT, and peers that are dialled and find their address behind them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.netlab import Host, Lab, LabError, why_unavailable

PORT, OTHER_PORT = 5000, 5001
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def udp(stack: ExitStack, lab: Lab, host: str, port: int = PORT) -> socket.socket:
    def bound() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((lab.address(host), port))
        made.settimeout(0.3)
        return made

    return stack.enter_context(lab.call(host, bound))


def seen(sender: socket.socket, receiver: socket.socket, address: tuple[str, int] | None = None) -> Any:
    """From where a datagram comes; None if it does not arrive."""
    sender.sendto(b"hello", address or receiver.getsockname())
    try:
        return receiver.recvfrom(100)[1]
    except TimeoutError:
        return None


def test_a_symmetric_router_has_a_port_for_each_destination_and_a_usual_one_has_one(sockets: ExitStack) -> None:
    hosts = [Host("a"), Host("b"), Host("usual", nat="usual"), Host("odd", nat="odd")]
    with Lab(hosts, kinds={"odd": "symmetric"}) as lab:
        first, second = udp(sockets, lab, "a"), udp(sockets, lab, "b")
        usual, odd = udp(sockets, lab, "usual"), udp(sockets, lab, "odd")
        assert seen(usual, first) == seen(usual, second) == (lab.public_address("usual"), PORT)
        places = [seen(odd, first), seen(odd, second)]
        assert len(set(places)) == 2
        assert {ip for ip, _ in places} == {lab.public_address("odd")}
        assert seen(first, odd, places[0]) == first.getsockname()
        assert seen(second, odd, places[0]) is None  # that hole is for the other one
        stranger = udp(sockets, lab, "b", OTHER_PORT)
        assert seen(stranger, usual, (lab.public_address("usual"), PORT)) is None


def test_a_forwarded_port_lets_everybody_in_and_one_to_one_nat_all_ports(sockets: ExitStack) -> None:
    hosts = [
        Host("out"),
        Host("a", nat="home", forwarded=PORT),
        Host("b", nat="home"),
        Host("cloud", nat="cloud", forwarded=0),
    ]
    with Lab(hosts) as lab:
        out, at_home, cloud = udp(sockets, lab, "out"), udp(sockets, lab, "a"), udp(sockets, lab, "cloud", OTHER_PORT)
        other_port = udp(sockets, lab, "a", OTHER_PORT)
        public = lab.public_address("a")
        assert seen(out, at_home, (public, PORT)) == out.getsockname()
        assert seen(at_home, out) == (public, PORT)
        assert seen(out, other_port, (public, OTHER_PORT)) is None
        assert seen(out, cloud, (lab.public_address("cloud"), OTHER_PORT)) == out.getsockname()


@pytest.mark.parametrize("kind", ["port-restricted", "no-hairpin"])
def test_a_neighbour_gets_to_the_public_address_where_the_router_turns_packets_round(
    kind: Any, sockets: ExitStack
) -> None:
    with Lab([Host("a", nat="home", forwarded=PORT), Host("b", nat="home")], kinds={"home": kind}) as lab:
        at_home, neighbour = udp(sockets, lab, "a"), udp(sockets, lab, "b")
        found = seen(neighbour, at_home, (lab.public_address("a"), PORT))
        if kind == "no-hairpin":
            assert found is None
        else:
            assert found is not None
            assert seen(at_home, neighbour, found) is not None


def test_descriptions_of_routers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(LabError, match="behind it"):
        Host("a", forwarded=PORT)
    with pytest.raises(LabError, match="do not exist"):
        Lab([Host("a")], kinds={"home": "symmetric"})


PEER = """
import asyncio, json, sys
from minga.core.events.bus import EventBus
from minga.network.interface import Address, PeerId
from minga.network.iroh.network import IrohNetwork
from minga.network.iroh.network import NetworkSettings
from minga.network.rpc.reachability import Reachability
from minga.network.rpc.node import Node
from minga.network.rpc.reachability import OwnAddress

async def main(seed, bind, port, announce, target):
    settings = NetworkSettings(host=bind, port=port, announce=tuple(announce))
    network = await IrohNetwork.open(bytes([seed] * 32), settings)
    events = EventBus(asyncio.get_running_loop().time)
    node = Node(network, run_id="r", role="trainer", lookup=lambda _: None, events=events)
    own = OwnAddress(node, Reachability(node))
    node.start()
    found = {"id": network.peer_id}
    if target:
        connection = await node.dial(Address(PeerId(target[0]), (target[1],)))
        found["dialable"] = await own.is_dialable()
        found["path"] = connection.facts().path
    print(json.dumps(found | {"direct": list(network.address.direct)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await node.close()

asyncio.run(main(*json.loads(sys.argv[1])))
"""


class Peers:
    """Peers of the real network, each a process on a host."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._started = lab, 0

    def start(self, host: str, *, port: int, announce: tuple[str, ...] = (), target: Any = None) -> dict[str, Any]:
        """Start one; what it says of itself after it dialled `target`, an id and an endpoint."""
        self._started += 1
        settings = json.dumps([self._started, self._lab.address(host), port, list(announce), target])
        process = self._lab.start(
            host, [sys.executable, "-c", PEER, settings], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT
        )
        assert isinstance(process, subprocess.Popen)
        line = process.stdout.readline() if process.stdout else ""
        assert line, process.stderr.read()[-800:] if process.stderr else ""
        return dict(json.loads(line))


def test_a_peer_behind_one_to_one_nat_is_dialled_at_its_announced_address_and_others_find_theirs() -> None:
    hosts = [Host("cloud", nat="cloud", forwarded=0), Host("home", nat="home", forwarded=PORT), Host("odd", nat="odd")]
    with Lab(hosts, kinds={"odd": "symmetric"}) as lab:
        peers = Peers(lab)
        announced = f"{lab.public_address('cloud')}:{PORT}"
        cloud = peers.start("cloud", port=PORT, announce=(announced,))
        assert announced in cloud["direct"]
        home = peers.start("home", port=PORT, target=[cloud["id"], announced])
        assert (home["path"], home["dialable"]) == ("direct", True)
        assert f"{lab.public_address('home')}:{PORT}" in home["direct"]
        odd = peers.start("odd", port=PORT, target=[cloud["id"], announced])
        assert (odd["path"], odd["dialable"]) == ("direct", False)
        assert not any(lab.public_address("odd") in endpoint for endpoint in odd["direct"])
