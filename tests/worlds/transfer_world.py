"""Peers on a virtual internet of which some serve states or files, and others fetch these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from minga.core.events.bus import Event, EventBus
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.simulation import run_virtual
from minga.training.transfer.run_files import RunFileServer
from minga.training.transfer.server import StateServer

LINE = HostSettings(4e6, 16e6, latency_s=0.02)


class Peer:
    """A peer that may serve its state, and the events that it told; what it serves of files is in `files`."""

    files: RunFileServer

    def __init__(self, swarm: Swarm, settings: HostSettings, server_options: dict[str, Any]) -> None:
        self.network: VirtualNetwork = swarm.internet.host(settings)
        self.events: list[Event] = []
        bus = EventBus(asyncio.get_running_loop().time)
        bus.subscribe(self.events.append)
        self.node = Node(self.network, run_id="run", role="trainer", lookup=swarm.lookup, events=bus)
        self.node.start()
        self.server = StateServer(self.node, **server_options)
        self.id: PeerId = self.node.peer_id

    def named(self, kind: str) -> list[str]:
        """The peers that events of this kind name."""
        return [str(event.fields["peer"]) for event in self.events if event.kind == kind]

    def offenders(self) -> list[str]:
        """The peers that broke the protocol, as this one saw it."""
        return self.named("peer.offence")


class Swarm:
    """All peers, each of which finds the addresses of the others, and a folder for what they keep."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.internet = folder, VirtualInternet(3)
        self.peers: dict[PeerId, Peer] = {}

    def lookup(self, peer: PeerId) -> Address | None:
        return self.peers[peer].network.address if peer in self.peers else None

    def peer(self, settings: HostSettings = LINE, **server_options: Any) -> Peer:
        peer = Peer(self, settings, server_options)
        self.peers[peer.id] = peer
        return peer


def virtually(test: Callable[[Swarm], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run a test in virtual time with a swarm, all peers of which are closed at the end."""

    def run(tmp_path: Path) -> None:
        async def main() -> None:
            swarm = Swarm(tmp_path)
            try:
                await test(swarm)
            finally:
                for peer in swarm.peers.values():
                    await peer.node.close()

        run_virtual(main(), limit_s=1000.0)

    run.__name__ = test.__name__
    return run
