"""Can others dial this peer? Asked of the peers that it found, who try it as strangers.

A peer behind a NAT has addresses that no peer outside can use. As an aggregator it would fail every round. So it finds
out before it takes part, and joins as a client if no other peer gets through. All peers can reach a peer with a relay
through it, so such a peer need not ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.core.urls import is_public
from minga.network.interface import Address, PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

METHOD = "node.dial_me"
MAX_ASKED = 3
MAX_DIALS_AT_ONCE = 4
ANSWER_S = 6.0


class DialMe(msgspec.Struct, frozen=True):
    """Please try to dial me here, as if we had never met."""

    address: Address


class Dialled(msgspec.Struct, frozen=True):
    """Whether that worked."""

    reached: bool


@loop_bound
class Reachability:
    """Serves the question on `node`, and asks it for this peer."""

    def __init__(self, node: Node) -> None:
        self._node, self._dialling = node, 0
        node.serve(METHOD, self._serve)

    async def check(self) -> bool | None:
        """Ask connected peers whether they can dial this one: True if any can, False if none, None if unknown."""
        address = self._node.network.address
        if not address.dialable or address.relay is not None:
            return address.dialable
        return await self._any(address)

    async def check_public(self) -> bool | None:
        """Ask them whether they can dial this peer at its public addresses: True, False, or None if unknown.

        A peer in the same local network may be told no by a router that does not send packets back inside.
        """
        address = self._node.network.address
        public = tuple(filter(is_public, address.direct))
        return await self._any(Address(address.peer_id, public)) if public else None

    async def check_at(self, endpoint: str, first: Collection[PeerId] = ()) -> bool | None:
        """Ask them whether they can dial this peer at one endpoint: True, False, or None if unknown.

        The peers in `first` named the endpoint; they are asked only where no other is connected.
        """
        others = [peer for peer in self._node.connected() if peer not in first]
        return await self._any(Address(self._node.peer_id, (endpoint,)), others or None)

    async def check_relay(self) -> bool | None:
        """Whether a stranger gets to this peer through its relay, tried from here; None without one."""
        network = self._node.network
        relay = network.address.relay
        return None if relay is None else await network.can_dial(Address(network.peer_id, (), relay))

    async def _any(self, address: Address, peers: Sequence[PeerId] | None = None) -> bool | None:
        chosen = (self._node.connected() if peers is None else peers)[:MAX_ASKED]
        asked = [asyncio.ensure_future(self._ask(peer, address)) for peer in chosen]
        try:
            answers: list[bool | None] = []
            for answer in asyncio.as_completed(asked):
                answers.append(await answer)
                if answers[-1]:
                    return True
            return False if False in answers else None
        finally:
            for question in asked:
                question.cancel()

    async def _ask(self, peer: PeerId, address: Address) -> bool | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._node.call(peer, METHOD, DialMe(address), Dialled)).reached
        except (RemoteError, TimeoutError):
            return None

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(DialMe)
        if request.address.peer_id != peer:
            raise RejectedError("only one's own address is tried", code=RefusalCode.ADDRESS)
        if self._dialling >= MAX_DIALS_AT_ONCE:
            raise RejectedError("enough others are being tried", code=RefusalCode.BUSY)
        self._dialling += 1
        try:
            # Through its relay everybody gets to a peer: that need not be tried.
            reached = await self._node.network.can_dial(Address(peer, request.address.direct))
        finally:
            self._dialling -= 1
        await stream.send(Dialled(reached))
