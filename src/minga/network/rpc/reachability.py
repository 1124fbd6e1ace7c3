"""Can others dial this peer? Asked of the peers that it found, who try it as strangers.

A peer behind a NAT has addresses that no peer outside can use. As an aggregator it would fail every round. So it finds
out before it takes part, and joins as a client if no other peer gets through. All peers can reach a peer with a relay
through it, so such a peer need not ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from minga.core.aio import Backoff
from minga.core.errors import RejectedError, RemoteError
from minga.core.events.network import AddressChanged, AddressSeen
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.core.urls import is_public
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import Address, Endpoint, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

DIAL_ME = "node.dial_me"
MAX_ASKED = 3
MAX_DIALS_AT_ONCE = 4
MAX_ELSEWHERE = 4
"""How many public endpoints are tried for a peer at other IP addresses than the one from which it talks."""
DIALLED_S = 6.0
BUSY_S, BUSY_PAUSE_S = 30.0, 1.0
"""Seconds for which peers are asked again that are busy trying others, and about so many between two times: where many
join at once, those that asked last must not take themselves for dialable because nobody had time for them."""


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
        self._node, self._dialling, self._generator = node, 0, random.Random(f"reachability of {node.peer_id}")
        node.serve(DIAL_ME, self._serve)

    async def check(self) -> bool | None:
        """Ask connected peers whether they can dial this one: True if any can, False if none, None if unknown."""
        address = self._node.network.address
        if not address.dialable or address.relay is not None:
            return address.dialable
        return await self._any(address, self._node.connected())

    async def check_public(self) -> bool | None:
        """Ask them whether they can dial this peer at its public addresses: True, False, or None if unknown.

        A peer in the same local network may be told no by a router that does not send packets back inside.
        """
        address = self._node.network.address
        public = tuple(filter(is_public, address.direct))
        return await self._any(Address(address.peer_id, public), self._node.connected()) if public else None

    async def check_at(self, endpoint: str, peers: Sequence[PeerId]) -> bool | None:
        """Ask the first of `peers` whether they can dial this peer at one endpoint: True, False, or None if unknown."""
        return await self._any(Address(self._node.peer_id, (endpoint,)), peers)

    async def check_relay(self) -> bool | None:
        """Whether a stranger gets to this peer through its relay, tried from here; None without one."""
        network = self._node.network
        relay = network.address.relay
        return None if relay is None else await network.can_dial(Address(network.peer_id, (), relay))

    async def _any(self, address: Address, peers: Sequence[PeerId]) -> bool | None:
        """Whether any of them reaches this peer; they are asked until one of them has time to try."""
        until_s = asyncio.get_running_loop().time() + BUSY_S
        while (answer := await self._first(address, peers)) == "busy":
            if asyncio.get_running_loop().time() >= until_s:
                return None
            await asyncio.sleep(BUSY_PAUSE_S * self._generator.uniform(0.5, 1.5))
        return answer

    async def _first(self, address: Address, peers: Sequence[PeerId]) -> bool | Literal["busy"] | None:
        asked = [asyncio.ensure_future(self._ask(peer, address)) for peer in peers[:MAX_ASKED]]
        try:
            answers = []
            for answer in asyncio.as_completed(asked):
                answers.append(await answer)
                if answers[-1] is True:
                    return True
            return False if False in answers else "busy" if "busy" in answers else None
        finally:
            for question in asked:
                question.cancel()

    async def _ask(self, peer: PeerId, address: Address) -> bool | Literal["busy"] | None:
        try:
            async with asyncio.timeout(DIALLED_S):
                return (await self._node.call(peer, DIAL_ME, DialMe(address), Dialled)).reached
        except RejectedError as error:
            return "busy" if error.code is RefusalCode.BUSY else None
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
            reached = await self._node.network.can_dial(Address(peer, self._worth_trying(request.address)))
        finally:
            self._dialling -= 1
        await stream.send(Dialled(reached))

    def _worth_trying(self, address: Address) -> tuple[Endpoint, ...]:
        """The endpoints of a peer without those that may be anybody's, but for the first few: public ones at another IP
        address than that from which the peer talks. A dial sends a hundred times as many bytes as the request for it.
        """
        own_ip = _ip_of(self._node.seen_at(address.peer_id) or "")
        elsewhere = [endpoint for endpoint in address.direct if is_public(endpoint) and _ip_of(endpoint) != own_ip]
        return tuple(endpoint for endpoint in address.direct if endpoint not in elsewhere[MAX_ELSEWHERE:])


def _ip_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]


# ---- The own address as others see it: asked of connected peers, tried by a dial-back, and offered from then on.
#
# A router gives a peer an outer address that the peer itself does not know; the peers that it talks to see it. What
# one of them says may be a lie, and what it sees may be of no use to others. So an address is taken in once a peer,
# another one if there is any, dialled it as a stranger; or, where no peer can be asked to try, once two peers say the
# same. A router with a port for each destination makes no two agree. An address at which nobody got through is told to
# the user alone: it shows what to do.
#
# Each new connection is asked until a few peers answered, then at most one a minute: outer addresses change, and an
# address that failed is tried again, since its user may have opened the port. Connections outlive such a change, and
# their other ends go on to name the old address. So peers outside try now and then what was learned, and when none gets
# through any more, one of them is dialled anew. Neighbours cannot tell: many routers send no packets back inside. An
# address of no use stays until newer ones take its place.


WHERE_AM_I = "node.where_am_i"
SEEN_AT_S = 3.0
MAX_CLAIMS = 8
PERIOD_S = 60.0
PROOF_S, LONGEST_PROOF_S = 300.0, 4800.0
"""Seconds until what was learned is tried again: at first, and at most after doubling while all of it fails."""
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
        self._asked_s, self._generator = -math.inf, random.Random(node.peer_id)
        node.serve(WHERE_AM_I, self._serve)

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
            self._node.spawn(self._prove_forever())

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
            if endpoint not in known:
                await self._weigh(endpoint, count)

    async def _weigh(self, endpoint: str, count: int) -> None:
        connected = self._node.connected()
        others = [peer for peer in connected if self._claims.get(peer) != endpoint]
        # Neighbours behind the same router cannot tell: before them those that saw it try it themselves.
        peers = self._draw_outside(endpoint) or self._draw_outside() or others or connected
        reached = await self._reachability.check_at(endpoint, peers)
        if reached is None:
            reached = self._tried.get(endpoint)
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

    async def _prove_forever(self) -> None:
        """Try what was learned, and let a new connection show the present address when all that fails."""
        pauses = Backoff(PROOF_S, LONGEST_PROOF_S)
        while True:
            # Peers that began together need not ask, and dial back, together.
            await asyncio.sleep(pauses.next_s() * self._generator.uniform(0.75, 1.0))
            known = self._node.network.address.direct
            learned = [endpoint for endpoint in reversed(self._tried) if endpoint in known]
            if await self._holds(learned):
                pauses.overcome()
            else:
                await self._meet_anew(learned)

    async def _holds(self, learned: Sequence[Endpoint]) -> bool:
        """Whether others get through at one of the addresses learned, as far as is known and if there are any."""
        for endpoint in learned:
            if await self._reachability.check_at(endpoint, self._draw_witnesses([endpoint])) is not False:
                return True
        return not learned

    async def _meet_anew(self, learned: Sequence[Endpoint]) -> None:
        """Dial one peer once more: what it sees counts, and no longer what others saw."""
        self._claims.clear()
        for peer in self._draw_witnesses(learned):
            with contextlib.suppress(RemoteError):
                await self._node.redial(peer)
                return

    def _draw_witnesses(self, learned: Sequence[Endpoint]) -> list[PeerId]:
        """Peers outside; in a network of private addresses, where nobody is seen to be outside, any that are here."""
        return self._draw_outside() or ([] if all(map(is_public, learned)) else self._draw(lambda _: True))

    def _draw_outside(self, unclaimed: Endpoint = "") -> list[PeerId]:
        """A few peers at random that are seen at a public address, and did not claim to see this one at `unclaimed`."""
        return self._draw(
            lambda peer: is_public(self._node.seen_at(peer) or "") and self._claims.get(peer) != unclaimed
        )

    def _draw(self, fits: Callable[[PeerId], bool]) -> list[PeerId]:
        return self._node.draw_connected(MAX_ASKED, self._generator, fits)

    async def _ask(self, peer: PeerId) -> None:
        try:
            endpoint = (await self._node.call(peer, WHERE_AM_I, WhereAmI(), SeenAt, timeout_s=SEEN_AT_S)).endpoint
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
