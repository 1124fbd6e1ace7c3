"""What `minga host` says of its link: from where it leads into the run, what to do for more, and what it finds out; and
what `minga join` says when the host is gone, and with it, for newcomers, the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from minga.cli.terminal.output import Output
from minga.core.errors import ClosedError, LinkError, StorageError
from minga.core.events.bus import Event
from minga.core.events.network import AddressChanged, AddressSeen, PeerConnected
from minga.core.spec.run_spec import RunSpec
from minga.core.urls import is_loopback, is_public
from minga.identity.links.links import Link, Reach, reach_of
from minga.network.interface import Address
from minga.network.rpc.node import Node
from minga.training.peer import Peer
from minga.training.status.run_status import RunStatus

_WHO = {
    Reach.INTERNET: "Anyone who has this link can join the run:",
    Reach.NETWORK: "Peers in this local network can join the run by this link:",
    Reach.MACHINE: "Peers on this machine can join the run by this link:",
}

_REACHED = "A peer that joined reached this machine at its public address: the link works over the internet."
_NOT_REACHED = (
    "A peer that joined could not reach this machine at its public address. Let router and firewall pass its UDP port. "
    "If that peer is in your own local network, this may be a false alarm."
)
HOST_GONE_S = 15.0
"""How long the host is not to be seen, in seconds, before it is said to be gone."""
_HOST_GONE = "The host of this run is gone. The run goes on with the peers that are here"
_ALL_GONE = (
    "No other peer answers. Until one does, this machine trains alone if the last step had no more than two members, "
    "and else waits. `minga doctor LINK` says whether the fault is here"
)

_RELAY_WORKS = "The link was tried from outside, through the relay {}: it works."
_RELAY_FAILS = "The link was tried through the relay {}, and did not lead back to this machine: name another relay."


def relay_line(spec: RunSpec, bound_to: str | None) -> str:
    """Which relays the run uses, before any is asked; empty where none is."""
    if spec.network.relay == "none" or is_loopback(bound_to or ""):
        return ""
    if spec.network.relay == "public":
        return (
            "Relays: iroh's public ones, which see no content and are for trying. For your own or none set relay in "
            "the section network of the run spec; docs/operating.md says how."
        )
    return f"Relays: {', '.join(spec.network.relay)}"


def who_can_join(link: Link) -> str:
    """The sentence before the link."""
    return _WHO[reach_of(link.entries)]


def reach_lines(link: Link, spec: RunSpec, bound_to: str | None) -> list[str]:
    """From where the link works and why, and how to widen that."""
    reach = reach_of(link.entries)
    relays = [entry.relay for entry in link.entries if entry.relay is not None]
    public = [address for entry in link.entries for address in entry.direct if is_public(address)]
    lines = [f"The link is good for {reach}."]
    if not relays and spec.network.relay != "none" and not is_loopback(bound_to or ""):
        lines.append("No relay answers: this machine has no internet, or a firewall blocks it. Nothing waits for that.")
    if relays:
        lines.append(f"Peers that cannot reach this machine directly come through the relay {relays[0]}.")
    elif public:
        lines.append(f"That needs UDP to reach this machine at {public[0]}: see that router and firewall let it in.")
    elif reach is Reach.NETWORK:
        port = link.entries[0].direct[0].rpartition(":")[2]
        lines.append(
            f"It holds private addresses only. For the internet use relays, or forward UDP port {port} at your router "
            f"to this machine and start with --port {port} --announce YOUR.PUBLIC.IP:{port}"
        )
    elif not is_loopback(bound_to or ""):
        lines.append("This machine has no network at present.")
    return lines


def seen_line(endpoint: str, *, port: str) -> str:
    """What to do when peers see this machine at an address where no new peer gets in; `port` is the bound one."""
    ip = endpoint.rpartition(":")[0]
    return (
        f"Peers see this machine at {endpoint}, and no new peer can reach it there. Forward UDP port {port} at your "
        f"router to this machine and start with --port {port} --announce {ip}:{port}"
    )


class LinkWatch:
    """Tells of the link of `peer`; `show` shows one that took the place of the one that was printed."""

    def __init__(self, peer: Peer, output: Output, show: Callable[[Link], None]) -> None:
        self._peer, self._output, self._show = peer, output, show
        self._printed: Address | None = None
        self._asked = False
        peer.subscribe(self._on_event)

    def begin(self) -> None:
        """The link was printed: tell of changes from now on, and try it through the relay if there is one."""

        def note() -> None:
            self._printed = self._node.address
            self._node.spawn(self._check_relay())

        self._peer.on_loop(note)

    # ---- on the loop of the peer

    @property
    def _node(self) -> Node:
        return self._peer.session.node

    def _on_event(self, event: Event) -> None:
        if isinstance(event.data, PeerConnected) and not self._asked:
            self._asked = True
            self._node.spawn(self._check_public())
        elif isinstance(event.data, AddressChanged):
            self._node.spawn(self._update())
        elif isinstance(event.data, AddressSeen) and event.data.reached is False:
            port = self._node.address.direct[0].rpartition(":")[2] if self._node.address.direct else "PORT"
            self._output.event("address_seen", endpoint=event.data.endpoint, reached=False)
            self._output.say(seen_line(event.data.endpoint, port=port))

    async def _check_public(self) -> None:
        reached = await self._peer.session.reachability.check_public()
        self._asked = reached is not None
        if reached is not None:
            self._output.event("link_checked", reached=reached, by="peer")
            self._output.say(_REACHED if reached else _NOT_REACHED)

    async def _check_relay(self) -> None:
        reached = await self._peer.session.reachability.check_relay()
        if reached is not None:
            self._output.event("link_checked", reached=reached, by="relay")
            self._output.say((_RELAY_WORKS if reached else _RELAY_FAILS).format(self._node.address.relay))

    async def _update(self) -> None:
        """Show the link once more if this machine's own part of it has changed since it was printed."""
        before, address = self._printed, self._node.address
        if before is None or address == before:
            return
        self._printed = address
        try:
            link = await asyncio.to_thread(lambda: self._peer.link)
        except ClosedError:
            return
        reach = reach_of(link.entries)
        self._output.event("link_updated", link=str(link), reach=reach.name.lower())
        self._output.say(f"\nMore is known of this machine's address: the link below is good for {reach}.\n")
        try:
            await asyncio.to_thread(self._show, link)  # which writes files, and tells the local network
        except StorageError as error:  # of the page with the link; the run goes on
            self._output.say(str(error))
        if address.relay is not None and before.relay != address.relay:
            await self._check_relay()
        if any(map(is_public, set(address.direct) - set(before.direct))):
            await self._check_public()


class HostWatch:
    """Says at `peer`, each time that the host of the run is gone, by which link others join then; `said` if they know.

    The link that the host gave out may name no other peer than the host.
    """

    def __init__(self, peer: Peer, output: Output, *, said: bool) -> None:
        self._peer, self._output = peer, output
        self._host = peer.link.organiser
        self._seen_s, self._said = time.monotonic(), said

    def look(self, status: RunStatus) -> None:
        """Take note of who is there now."""
        if status.is_complete or any(each.peer_id == self._host for each in status.peers):
            self._seen_s, self._said = time.monotonic(), False
        elif not self._said and time.monotonic() - self._seen_s > HOST_GONE_S:
            self._said = True
            self._tell(_ALL_GONE if all(each.is_self for each in status.peers) else _HOST_GONE)

    def _tell(self, what: str) -> None:
        link: Link | None = None
        if self._peer.spec.security.admission != "members":  # there a link admits nobody
            with contextlib.suppress(LinkError):  # no peer that is here has an address
                link = self._peer.link
        self._output.event("host_gone", link=None if link is None else str(link))
        self._output.say(f"{what}. {'' if link is None else who_can_join(link)}".rstrip())
        if link is not None:
            self._output.say_whole(f"minga join {link}")
