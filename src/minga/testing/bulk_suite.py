"""The conformance suite over streams for bulk, which a network may send another way than the rest.

for one in NETWORK_CHECKS:
await one(bulk_only(make))
"""

from __future__ import annotations

from collections.abc import Callable

from minga.core.aio import Observers
from minga.network.interface import Address, Connection, LinkFacts, Network, PeerId, Stream
from minga.testing.suite import MakeNetwork


class BulkConnection(Connection):
    """A connection of which every stream is for bulk. `seen` is shown each stream that is opened."""

    def __init__(self, connection: Connection, seen: Callable[[Stream], None]) -> None:
        self._connection, self._seen = connection, seen

    @property
    def peer_id(self) -> PeerId:
        """See the interface."""
        return self._connection.peer_id

    async def open_stream(self, *, bulk: bool = True) -> Stream:  # noqa: ARG002
        """See the interface."""
        stream = await self._connection.open_stream(bulk=True)
        self._seen(stream)
        return stream

    async def accept_stream(self) -> Stream:
        """See the interface."""
        return await self._connection.accept_stream()

    def facts(self) -> LinkFacts:
        """See the interface."""
        return self._connection.facts()

    @property
    def seen_at(self) -> str | None:
        """See the interface."""
        return self._connection.seen_at

    @property
    def is_closed(self) -> bool:
        """See the interface."""
        return self._connection.is_closed

    async def close(self) -> None:
        """See the interface."""
        await self._connection.close()


class BulkNetwork(Network):
    """A network of which every stream is for bulk."""

    def __init__(self, network: Network, seen: Callable[[Stream], None]) -> None:
        self._network, self._seen = network, seen

    @property
    def peer_id(self) -> PeerId:
        """See the interface."""
        return self._network.peer_id

    @property
    def address(self) -> Address:
        """See the interface."""
        return self._network.address

    @property
    def on_address(self) -> Observers[[]]:
        """See the interface."""
        return self._network.on_address

    async def announce(self, endpoint: str) -> None:
        """See the interface."""
        await self._network.announce(endpoint)

    def wall_time(self) -> float:
        """See the interface."""
        return self._network.wall_time()

    async def connect(self, address: Address) -> Connection:
        """See the interface."""
        return BulkConnection(await self._network.connect(address), self._seen)

    async def can_dial(self, address: Address) -> bool:
        """See the interface."""
        return await self._network.can_dial(address)

    async def accept(self) -> Connection:
        """See the interface."""
        return BulkConnection(await self._network.accept(), self._seen)

    async def close(self) -> None:
        """See the interface."""
        await self._network.close()


def bulk_only(make: MakeNetwork, seen: Callable[[Stream], None] = lambda _: None) -> MakeNetwork:
    """Makes the networks of `make` such that every stream is opened for bulk, and shown to `seen`."""

    async def make_bulk(*, dialable: bool = True) -> Network:
        return BulkNetwork(await make(dialable=dialable), seen)

    return make_bulk
