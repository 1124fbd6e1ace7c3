"""What `minga host` says of its link: from where it leads into the run, what to do for more, and what it finds out; and
what `minga join` says when the host is gone, and with it, for newcomers, the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from minga.cli.terminal.output import Output
from minga.core.errors import ClosedError, LinkError, StorageError
from minga.core.events.bus import Event
from minga.core.events.network import AddressChanged, AddressSeen, PeerConnected
from minga.core.files import store
from minga.core.spec.run_spec import RunSpec
from minga.core.urls import is_loopback, is_public
from minga.core.wheel import own_wheel
from minga.dashboard.joining import JoinFacts, JoinPage, Source
from minga.identity.links.links import Link, Reach, reach_of
from minga.network.interface import Address
from minga.network.rpc.node import Node
from minga.notebook.notebook_file import joining_notebook
from minga.training.peer import Peer
from minga.training.status.run_status import RunStatus

if TYPE_CHECKING:
    from minga.network.lan import LanAnnouncement

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
KEY_DIGITS = 16
"""Of the organiser's key, for people to compare."""
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


class HostLink:
    """The link of `peer`, a host: shows it, and tells what becomes known of it later.

    `landing_page` is the file for the page that publishes it, `bound_to` the address that this host was told to
    use; `lan` announces the run in the local network.
    """

    def __init__(
        self,
        peer: Peer,
        output: Output,
        *,
        show_qr: bool = False,
        landing_page: Path | None = None,
        bound_to: str | None = None,
        lan: LanAnnouncement | None = None,
    ) -> None:
        self._peer, self._output = peer, output
        self._shows_qr, self._landing_page, self._bound_to, self._lan = show_qr, landing_page, bound_to, lan
        self._printed: Address | None = None
        self._asked = False
        peer.subscribe(self._on_event)

    def announce(self) -> None:
        """Print the link, what it is good for and what to do with it; from now on tell of changes."""
        peer, output, link = self._peer, self._output, self._peer.link
        fields = {"url": link.at(peer.spec.network.landing_url), "reach": reach_of(link.entries).name.lower()}
        output.event("link", link=str(link), run_id=peer.run_id, directory=str(peer.directory), **fields)
        if others := peer.on_loop(peer.session.node.connected):
            output.event("under_way", peers=len(others))
            output.say("This run is under way: this machine takes part in it again.")
        if peer.spec.founder == "first":
            output.say(
                "This run begins with the weights of the first peer that trains: start the one that has them first."
            )
        if peer.spec.security.admission == "members":
            output.say("This run is for members only. Make an invitation, which is a longer link, by\n")
        else:
            output.say(f"{who_can_join(link)}\n")
        self.show(link)
        for line in reach_lines(link, peer.spec, self._bound_to):
            output.say(line)
        output.say(f"Files, checkpoints and history: {peer.directory}")
        if self._lan is not None:
            key = link.organiser
            output.event("announced", organiser=key)
            output.say(
                "Announced in this local network, where `minga join` without a link lists it. Organiser's key for "
                f"comparison: {key[:KEY_DIGITS]}"
            )
        self.watch()

    def show(self, link: Link) -> None:
        """Print the command with the link, perhaps as a QR code, too, and write the page that it is published on."""
        peer, output, page = self._peer, self._output, self._peer.spec.network.landing_url
        for_members = peer.spec.security.admission == "members"
        if self._shows_qr and output.interactive and not for_members:
            output.console.file.write(link.qr(page) + "\n")
        is_own_program = peer.spec.model.recipe == "custom"
        typed = "minga admit" if for_members else "python PROGRAM.py" if is_own_program else "minga join"
        output.say_whole(f"{typed} {link.at(page)}")
        if is_own_program:
            output.say(
                "\nPROGRAM.py stands for the program that trains the model: it gives the link to minga.join, or to an "
                "adapter of docs/trainers.md."
            )
        output.say("")
        if self._landing_page is not None:
            beside = write_landing_page(self._landing_page, peer.spec, link)
            output.say(f"The page with the link: {self._landing_page}. It goes to a web server together with {beside}")
        if self._lan is not None:
            self._lan.show(link)

    def watch(self) -> None:
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
            await asyncio.to_thread(self.show, link)  # which writes files, and tells the local network
        except StorageError as error:  # of the page with the link; the run goes on
            self._output.say(str(error))
        if address.relay is not None and before.relay != address.relay:
            await self._check_relay()
        if any(map(is_public, set(address.direct) - set(before.direct))):
            await self._check_public()


def write_landing_page(path: Path, spec: RunSpec, link: Link) -> str:
    """Write the page, and beside it what it hands out: minga, and a notebook; what that is, in words.

    The commands in it name the place that the run spec has for the page, or else this folder, until the page is opened
    on a web server, when it puts in its own address. Raises `StorageError`.
    """
    place = spec.network.landing_url
    base = f"{path.resolve().parent.as_uri()}/" if place is None else place.rpartition("/")[0] + "/"
    wheel = own_wheel() if spec.network.source_url is None else None
    facts, source = JoinFacts.of(spec, link), Source.of(spec, base, wheel)
    files = {} if wheel is None else {wheel.name: wheel.data}
    get = spec.network.source_url or wheel
    notebook = None
    if get is not None and facts.notebook_link is not None:
        notebook = f"{path.stem}.ipynb"
        files[notebook] = joining_notebook(facts.notebook_link, get).encode()
    is_as_signed = wheel is not None and wheel.reference == spec.wheel
    page = JoinPage(facts, source, address=place, notebook=notebook, is_as_signed=is_as_signed, is_file=True)
    for name, data in {**files, path.name: page.html().encode()}.items():
        store(path.with_name(name), data)
    return " and ".join(files) or "nothing else"


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
