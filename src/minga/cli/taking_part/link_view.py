"""What `minga host` says of its link: from where it leads into the run, and what to do for more."""

from __future__ import annotations

from minga.cli.terminal.output import Output
from minga.core.events.bus import Event
from minga.core.events.network import PeerConnected
from minga.core.spec.run_spec import RunSpec
from minga.core.urls import is_loopback, is_public
from minga.identity.links.links import Link
from minga.identity.links.reach import Reach, reach_of
from minga.training.peer import Peer

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


def relay_line(spec: RunSpec, bound_to: str | None) -> str:
    """Which relays the run uses, before any is asked; empty where none is."""
    if spec.network.relay == "none" or is_loopback(bound_to or ""):
        return ""
    if spec.network.relay == "public":
        return (
            "Relays: iroh's public ones, which see no content and are for trying. For your own or none set relay in "
            "the section network of the run spec; docs/relays.md says how."
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


def check_when_reached(peer: Peer, output: Output) -> None:
    """Let the first peer that connects and can say so try the public addresses of this one, and tell the result."""
    session = peer.session
    asked = False

    async def check() -> None:
        nonlocal asked
        reached = await session.reachability.check_public()
        asked = reached is not None
        if reached is not None:
            output.event("link_checked", reached=reached)
            output.say(_REACHED if reached else _NOT_REACHED)

    def on_event(event: Event) -> None:
        nonlocal asked
        if isinstance(event.data, PeerConnected) and not asked:
            asked = True
            session.node.spawn(check())

    peer.subscribe(on_event)
