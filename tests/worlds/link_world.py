"""Nodes on one virtual internet that move bulk bytes, for tests of what they learn of their lines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from minga.averaging.links import BrokenPaths, Links, links_of
from minga.core.events.bus import Event, EventBus
from minga.core.rate_cap import RateCap
from minga.network.bandwidth.access_link import AccessLink, AccessRates
from minga.network.interface import Address, PeerId
from minga.network.probing import Prober
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork

FRAME_BYTES = 32 << 10
MB = 1e6


class Peer:
    """A node with a meter, a prober and a service that takes in bulk bytes."""

    def __init__(
        self, network: VirtualNetwork, book: dict[PeerId, Address], up: RateCap | None, down: RateCap | None
    ) -> None:
        self.network, self.peer_id = network, network.peer_id
        clock = asyncio.get_running_loop().time
        self.log: list[Event] = []
        events = EventBus(clock)
        events.subscribe(self.log.append)
        access_link = AccessLink(clock, network.wall_time, up, down)
        role = "trainer" if network.settings.dialable else "client"
        self.node = Node(network, run_id="run", role=role, lookup=book.get, events=events, access_link=access_link)  # type: ignore[arg-type]
        self.prober = Prober(self.node, lambda: [peer for peer in book if peer != self.peer_id])
        self.received = 0
        self.node.serve("test.take", self._take)

    async def send(self, peer: Peer, size: int) -> None:
        """Send `size` bytes, rounded up to whole frames, and wait until all have arrived."""
        async with self.node.open(peer.peer_id, "test.take", bulk=True) as stream:
            sending = asyncio.get_running_loop().create_task(self._send(stream, size))
            await stream.receive_end()
            await sending

    def broken_paths(self) -> BrokenPaths:
        return BrokenPaths({}, frozenset())

    def rates(self) -> AccessRates:
        return self.node.access_link.rates()

    async def _send(self, stream: MessageStream, size: int) -> None:
        frame = bytes(FRAME_BYTES)
        frames = -(-size // FRAME_BYTES)
        await stream.send_bulk(frames.to_bytes(4, "big"))
        for _ in range(frames):
            await stream.send_bulk(frame)
        await stream.finish()

    async def _take(self, peer: PeerId, stream: MessageStream) -> None:
        count = bytearray(4)
        await stream.receive_bulk_into(memoryview(count))
        target = memoryview(bytearray(FRAME_BYTES))
        for _ in range(int.from_bytes(count, "big")):
            await stream.receive_bulk_into(target)
            self.received += FRAME_BYTES


class LinkWorld:
    """Peers with lines of the given rates in MB/s (up, down; None: unlimited), connected to each other on demand."""

    def __init__(
        self,
        lines: Iterable[tuple[float | None, float | None]],
        *,
        window_bytes: int = 2 << 20,
        latency_s: float = 0.01,
        caps: Sequence[tuple[str | None, str | None]] = (),
        clients: int = 0,
    ) -> None:
        self.internet = VirtualInternet(window_bytes=window_bytes)
        self.book: dict[PeerId, Address] = {}
        self.peers: list[Peer] = []
        rates = list(lines)
        for index, ((up, down), cap) in enumerate(itertools.zip_longest(rates, caps, fillvalue=(None, None))):
            dialable = index < len(rates) - clients
            settings = HostSettings(_bytes(up), _bytes(down), latency_s=latency_s, dialable=dialable)  # type: ignore[arg-type]
            upload, download = (None if c is None else RateCap.parse(c) for c in cap)
            peer = Peer(self.internet.host(settings), self.book, upload, download)
            self.book[peer.peer_id] = peer.network.address
            self.peers.append(peer)

    async def start(self, *, probing: bool = False) -> None:
        for peer in self.peers:
            peer.network.process.context.run(peer.node.start)
        for one, other in itertools.combinations(self.peers, 2):
            dialler, dialled = (one, other) if other.network.address.dialable else (other, one)
            if dialled.network.address.dialable:
                await dialler.network.process.run(dialler.node.connection(dialled.peer_id))
        for peer in self.peers if probing else ():
            peer.network.process.context.run(peer.node.spawn, peer.prober.run())

    async def exchange(self, size: int) -> float:
        """Everybody sends `size` bytes to everybody at once, as in a round; returns the seconds it took."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.gather(
            *(p.network.process.run(p.send(q, size)) for p in self.peers for q in self.peers if p != q)
        )
        return loop.time() - begun

    def records(self) -> dict[PeerId, Links]:
        return {peer.peer_id: links_of(peer.node, {}) for peer in self.peers}

    async def close(self) -> None:
        for peer in self.peers:
            await peer.node.close()


def _bytes(rate: float | None) -> float | None:
    return None if rate is None else rate * MB
