"""What `minga host` says of its link: from where it leads into the run, and what to do for more."""

from __future__ import annotations

from minga.core.spec.run_spec import RunSpec
from minga.core.urls import is_loopback, is_public
from minga.identity.links.links import Link
from minga.identity.links.reach import Reach, reach_of

_WHO = {
    Reach.INTERNET: "Anyone who has this link can join the run:",
    Reach.NETWORK: "Peers in this local network can join the run by this link:",
    Reach.MACHINE: "Peers on this machine can join the run by this link:",
}


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
