"""How the organisers' orders reach every member.

    access.orders   OrdersHeld -> OrdersCompared; unless they are the same also OrderPages, and OrderPages back

The caller tells a digest of the orders that it holds. If the other side holds others, both send what they have, and
each enters what is new to it. That happens on every new connection, with one random neighbour every `EXCHANGE_S`
seconds, and at once with all neighbours when an order is new. Orders are rare, and every peer verifies them itself, so
they flood the swarm within a few round trips.
"""

from __future__ import annotations

import asyncio
import random
from typing import Annotated

import msgspec
from blake3 import blake3

from minga.core.errors import ProtocolError
from minga.core.events.training import AccessInvalidOrder
from minga.core.spec.sections import MAX_ORGANISERS
from minga.core.thread_guard import loop_bound
from minga.identity.access.amendments import MAX_AMENDMENTS, MAX_REGROUPS, Amendment, Regroup
from minga.identity.access.ledger import AccessLedger, PublicOrder
from minga.identity.access.orders import MAX_BARRED, MAX_RANGES, MAX_TERMS, RangeBan, Revocation, Transfer
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.training.access.admission import Admission

METHOD = "access.orders"
EXCHANGE_S = 20.0
MAX_ORDERS = (MAX_BARRED + MAX_RANGES) * MAX_ORGANISERS + MAX_TERMS + MAX_AMENDMENTS + MAX_REGROUPS
ORDERS_A_PAGE = 200
"""A revocation takes at most 0.7 kB, a transfer 320 kB: so a page stays well below the largest message."""


class OrdersHeld(msgspec.Struct, frozen=True, array_like=True):
    """BLAKE3 of what the orders say that the caller holds; which of those who may sign did so does not matter."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class OrdersCompared(msgspec.Struct, frozen=True, array_like=True):
    """Whether the other side holds the same."""

    same: bool


class OrderPage(msgspec.Struct, frozen=True, array_like=True):
    """Some of the orders that the sender holds: one transfer, or revocations; `more` pages follow, the last with
    all range bans, amendments and regroups (less than a MiB).
    """

    transfers: Annotated[tuple[Transfer, ...], msgspec.Meta(max_length=1)]
    revocations: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=ORDERS_A_PAGE)]
    more: bool
    ranges: Annotated[tuple[RangeBan, ...], msgspec.Meta(max_length=MAX_RANGES * MAX_ORGANISERS)] = ()
    amendments: Annotated[tuple[Amendment, ...], msgspec.Meta(max_length=MAX_AMENDMENTS)] = ()
    regroups: Annotated[tuple[Regroup, ...], msgspec.Meta(max_length=MAX_REGROUPS)] = ()


@loop_bound
class OrderExchange:
    """Keeps the orders of one peer and its neighbours the same."""

    def __init__(self, node: Node, admission: Admission, ledger: AccessLedger) -> None:
        self._node, self._admission, self._ledger = node, admission, ledger
        self._random = random.Random(f"minga orders {node.peer_id}")
        node.serve(METHOD, self._serve)
        node.on_connected.add(self._meet)

    async def run(self) -> None:
        """Exchange orders with one neighbour after the other, until cancelled."""
        while True:
            if neighbours := self._node.connected():
                self.begin(self._random.choice(neighbours))
            await asyncio.sleep(EXCHANGE_S)

    def spread(self) -> None:
        """Tell all neighbours at once."""
        for peer in self._node.connected():
            self.begin(peer)

    def begin(self, peer: PeerId) -> None:
        """Exchange orders with one neighbour in the background."""
        self._node.spawn(self.exchange(peer))

    async def exchange(self, peer: PeerId) -> None:
        """Make the orders here and at `peer` the same. Raises `RemoteError`."""
        async with self._node.open(peer, METHOD) as stream:
            await stream.send(OrdersHeld(self._digest()))
            compared = await stream.receive(OrdersCompared)
            theirs = [] if compared.same else await self._receive(stream)
            if not compared.same:
                await self._send(stream)
            await stream.finish()
            await stream.receive_end()
            self._take(theirs, peer)

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        held = await stream.receive(OrdersHeld)
        same = held.digest == self._digest()
        await stream.send(OrdersCompared(same))
        if not same:
            await self._send(stream)
            self._take(await self._receive(stream), peer)

    async def _send(self, stream: MessageStream) -> None:
        orders = list(self._ledger.orders())
        pages = [OrderPage((order,), (), True) for order in orders if isinstance(order, Transfer)]
        barred = tuple(order for order in orders if isinstance(order, Revocation))
        pages += [OrderPage((), barred[i : i + ORDERS_A_PAGE], True) for i in range(0, len(barred), ORDERS_A_PAGE)]
        for page in pages:
            await stream.send(page)
        ranges = tuple(order for order in orders if isinstance(order, RangeBan))
        await stream.send(
            OrderPage((), (), False, ranges, tuple(self._ledger.amendments), tuple(self._ledger.regroups))
        )

    async def _receive(self, stream: MessageStream) -> list[PublicOrder]:
        orders: list[PublicOrder] = []
        changes = transfers = 0
        while True:
            page = await stream.receive(OrderPage)
            found: list[PublicOrder] = [
                *page.transfers,
                *page.revocations,
                *page.ranges,
                *page.amendments,
                *page.regroups,
            ]
            orders += found
            transfers += len(page.transfers)
            changes += len(page.amendments) + len(page.regroups)
            empty = page.more and not found
            is_over = transfers > MAX_TERMS or changes > MAX_AMENDMENTS + MAX_REGROUPS
            if empty or len(orders) > MAX_ORDERS or is_over:
                raise ProtocolError("orders without end", peer=stream.peer)
            if not page.more:
                return orders

    def _take(self, orders: list[PublicOrder], peer: PeerId) -> None:
        term = self._ledger.term
        if invalid := self._admission.take(orders):
            self._node.events.emit(AccessInvalidOrder(peer=peer, why=str(invalid[0]), count=len(invalid)))
            if term == self._ledger.term:
                raise ProtocolError(f"sent an order of the organisers that is none: {invalid[0]}", peer=peer)

    def _digest(self) -> bytes:
        said = [(order.CONTEXT, order.statement()) for order in self._ledger.orders()]
        return bytes(blake3(msgspec.msgpack.encode(said)).digest())

    def _meet(self, peer: PeerId) -> None:
        if peer > self._node.peer_id:  # the other side begins otherwise
            self.begin(peer)
