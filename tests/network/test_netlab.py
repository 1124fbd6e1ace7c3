"""Peers of the real network find their addresses behind the routers of a lab, of which nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.netlab import Host, Lab, why_unavailable

PORT = 5000
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")


def test_nothing_is_left_of_an_owner_that_was_killed() -> None:
    program = (
        "import os, time; from tests.netlab import Host, Lab\n"
        "with Lab([Host('a', up=1e6), Host('b', nat='home')]) as lab:\n"
        "    processes = [lab.start(name, ['sleep', '1000']) for name in 'ab']\n"
        "    for name, process in zip('ab', processes):\n"
        "        while b'sleep' not in open(f'/proc/{process.pid}/cmdline', 'rb').read()[:5]: time.sleep(0.01)\n"
        "        print(process.pid, os.stat(lab.namespace(name)).st_ino, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        lines = [owner.stdout.readline().split() for _ in range(2)]
        children, namespaces = ([int(line[i]) for line in lines] for i in (0, 1))
        assert set(namespaces) <= namespaces_in_use()
        owner.kill()
    while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
        time.sleep(0.01)  # until the kernel has delivered it; the test's time limit is the bound
    while set(namespaces) & namespaces_in_use():
        time.sleep(0.01)  # a process that ends loses its files before its namespaces


def namespaces_in_use() -> set[int]:
    """Inodes of all network namespaces that a process is in or holds open."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            for file in [directory / "ns/net", *(directory / "fd").iterdir()]:
                target = os.readlink(file)
                if target.startswith("net:["):
                    found.add(int(target[5:-1]))
        except OSError:
            continue
    return found


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
