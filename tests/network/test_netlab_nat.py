"""Peers of the real network behind routers of each kind of NAT: they are dialled there, and find their address."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.netlab import Host, Lab, why_unavailable

PORT = 5000
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")

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
