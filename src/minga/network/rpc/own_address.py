"""The own address as others see it: asked of connected peers, tried by a dial-back, and offered from then on.

A router gives a peer an outer address that the peer itself does not know; the peers that it talks to see it. What one
of them says may be a lie, and what it sees may be of no use to others. So an address is taken in once a peer, another
one if there is any, dialled it as a stranger; or, where no peer can be asked to try, once two peers say the same. A
router with a port for each destination makes no two agree. An address at which nobody got through is told to the user
alone: it shows what to do.

Each new connection is asked until a few peers answered, then at most one a minute, as outer addresses change.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from minga.core.errors import RemoteError
from minga.core.events.network import AddressChanged, AddressSeen
from minga.core.thread_guard import loop_bound
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import Endpoint, PeerId
from minga.network.rpc.dial_back import MAX_ASKED, Reachability
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

METHOD = "node.where_am_i"
ANSWER_S = 3.0
MAX_CLAIMS = 8
PERIOD_S = 60.0
AGREEING = 2


class WhereAmI(msgspec.Struct, frozen=True):
    """At which address do you see me?"""


class SeenAt(msgspec.Struct, frozen=True):
    """There; None over a relay."""

    endpoint: Endpoint | None = None


@loop_bound
class OwnAddress:
    """Serves the question on `node`, and asks it for this peer."""

    def __init__(self, node: Node, reachability: Reachability) -> None:
        self._node, self._reachability = node, reachability
        self._claims: BoundedDict[PeerId, str] = BoundedDict(MAX_CLAIMS)
        self._tried: BoundedDict[str, bool | None] = BoundedDict(MAX_CLAIMS)
        self._asked_s = -math.inf
        node.serve(METHOD, self._serve)

    def start(self, publish: Callable[[], None]) -> None:
        """Ask the peers that are connected and those that come; `publish` when the address of this peer changes."""

        def tell() -> None:
            if self._node.is_dialable:
                publish()
                address = self._node.address
                self._node.events.emit(AddressChanged(direct=list(address.direct), relay=address.relay))

        if self._node.is_dialable:
            self._node.network.on_address.add(tell)
            self._node.on_connected.add(self._meet)
            self._node.spawn(self.learn())

    async def is_dialable(self) -> bool | None:
        """Whether others can dial this peer, also at addresses that it learns now; None if unknown."""
        dialable = await self._reachability.check()
        if dialable is False:
            await self.learn()
            return await self._reachability.check() if any(self._tried.values()) else False
        return dialable

    async def learn(self, peers: Iterable[PeerId] | None = None) -> None:
        """Ask `peers`, by default some that are connected, and take in what proves right."""
        asked = self._node.connected()[:MAX_ASKED] if peers is None else list(peers)
        self._asked_s = asyncio.get_running_loop().time()
        await asyncio.gather(*map(self._ask, asked))
        known = self._node.network.address.direct
        for endpoint, count in Counter(self._claims.values()).most_common():
            if endpoint not in known and (self._tried.get(endpoint) is None or self._tried[endpoint]):
                await self._weigh(endpoint, count)

    async def _weigh(self, endpoint: str, count: int) -> None:
        claimants = [peer for peer, claim in self._claims.items() if claim == endpoint]
        reached = await self._reachability.check_at(endpoint, claimants)
        is_news = endpoint not in self._tried or self._tried[endpoint] != reached
        self._tried[endpoint] = reached
        if reached or (reached is None and count >= AGREEING):
            await self._node.network.announce(endpoint)
        if is_news:
            self._node.events.emit(AddressSeen(endpoint=endpoint, reached=reached))

    def _meet(self, peer: PeerId) -> None:
        rested = asyncio.get_running_loop().time() - self._asked_s >= PERIOD_S
        if rested or len(self._claims) <= AGREEING:
            self._node.spawn(self.learn([peer]))

    async def _ask(self, peer: PeerId) -> None:
        try:
            endpoint = (await self._node.call(peer, METHOD, WhereAmI(), SeenAt, timeout_s=ANSWER_S)).endpoint
        except RemoteError:
            return
        if endpoint is not None and _is_plausible(endpoint):
            self._claims[peer] = endpoint

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(WhereAmI)
        await stream.send(SeenAt(self._node.seen_at(peer)))


def _is_plausible(endpoint: str) -> bool:
    """Whether `ip:port` (IPv6 in brackets) can be the address of a peer in another network."""
    host, _, port = endpoint.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        return False
    return not (ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local)
