"""A virtual swarm whose peers only gossip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from minga.core.events.bus import Event, EventBus
from minga.identity.keys.keys import Identity
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import Gossip
from minga.network.gossip.record_kinds import AddressInfo, RecordKinds
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import RunClock
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.training.record_kinds import RUN_KINDS

RUN = "run-1"


class Peer:
    def __init__(self, network: VirtualNetwork, swarm: Swarm, kinds: RecordKinds | None = None) -> None:
        self.network, self.swarm = network, swarm
        self.peer_id = network.peer_id
        self.clock = asyncio.get_running_loop().time
        self.events = EventBus(self.clock)
        self.log: list[Event] = []
        self.events.subscribe(self.log.append)
        entries = [peer.network.address for peer in swarm.peers[:1]]
        run_clock = RunClock.of(network, entries)
        identity = Identity(network.private_key)
        self.board = Board(
            identity,
            RUN,
            run_clock=run_clock,
            clock=self.clock,
            events=self.events,
            kinds=RUN_KINDS if kinds is None else kinds,
        )
        role: Literal["trainer", "client"] = "trainer" if network.address.dialable else "client"
        self.node = Node(
            network,
            run_id=RUN,
            role=role,
            lookup=self.board.address_of,
            events=self.events,
            clock=run_clock,
            identity=identity,
        )
        self.gossip = Gossip(self.board, self.node, entries=entries)
        self.gave_way = False
        self.board.on_rival.add(lambda _: self._give_way())
        self.node.on_rival.add(lambda _: self._give_way())

    def _give_way(self) -> None:
        self.gave_way = True
        self.network.process.run(self.node.close())

    async def join(self, entry: Peer | None) -> None:
        self.node.start()
        self.gossip.start()
        if entry is not None:
            await self.node.dial(entry.network.address)
        self.node.clock.settle()
        self.board.put(AddressInfo(self.node.role, self.network.address.direct, incarnation=self.node.incarnation))
        if entry is not None:
            await self.gossip.synchronise(entry.peer_id)

    def kinds(self, prefix: str) -> list[tuple[str, str]]:
        return [(e.kind, str(e.fields["peer"])) for e in self.log if e.kind.startswith(prefix)]


class Swarm:
    def __init__(self, seed: int = 0, **options: float) -> None:
        self.internet = VirtualInternet(seed, **options)  # type: ignore[arg-type]
        self.peers: list[Peer] = []

    async def add(
        self,
        settings: HostSettings | None = None,
        private_key: bytes | None = None,
        kinds: RecordKinds | None = None,
    ) -> Peer:
        peer = Peer(self.internet.host(settings, private_key=private_key), self, kinds)
        entry = next((p for p in self.peers if not p.network.state.gone), None)
        self.peers.append(peer)
        await peer.network.process.run(peer.join(entry))
        return peer

    async def grow(self, size: int, settings: HostSettings | None = None) -> None:
        for _ in range(size):
            await self.add(settings)

    async def close(self) -> None:
        for peer in self.peers:
            await peer.node.close()

    async def until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> float:
        """Virtual seconds until the condition holds."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while not condition():
            if loop.time() - start > limit_s:
                raise TimeoutError(f"not within {limit_s} s")
            await asyncio.sleep(0.01)
        return loop.time() - start


def everyone_sees(viewers: Iterable[Peer], seen: Iterable[Peer]) -> bool:
    expected: list[PeerId] = sorted(peer.peer_id for peer in seen)
    return all(viewer.board.owners() == expected for viewer in viewers)
