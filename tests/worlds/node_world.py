"""Nodes on a virtual internet, without anything that trains."""

from __future__ import annotations

import asyncio

from minga.core.events.bus import EventBus
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.virtual.internet import HostSettings, VirtualInternet

RUN_ID = "run"


class World:
    """Nodes of which everybody has dialled all that came before."""

    def __init__(self, latency_s: float = 0.01) -> None:
        self.latency_s = latency_s
        self.internet, self.book, self.nodes = VirtualInternet(1), dict[PeerId, Address](), list[Node]()

    async def node(self) -> Node:
        network = self.internet.host(HostSettings(latency_s=self.latency_s))
        events = EventBus(asyncio.get_running_loop().time)
        made = Node(network, run_id=RUN_ID, role="trainer", lookup=self.book.get, events=events)
        made.start()
        for earlier in self.nodes:
            await made.dial(earlier.network.address)
        self.book[made.peer_id] = network.address
        self.nodes.append(made)
        return made


def identity_of(node: Node) -> Identity:
    return Identity.from_seed(node.network.private_key)  # type: ignore[attr-defined]
