"""From where a link leads into its run, judged by the addresses in it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import StrEnum

from minga.core.urls import is_public
from minga.identity.links.encoding import EntryPoint


class Reach(StrEnum):
    """The widest circle of machines from which some entry can be dialled."""

    MACHINE = "this machine"
    NETWORK = "this local network"
    INTERNET = "the internet"


def reach_of(entries: Iterable[EntryPoint]) -> Reach:
    """How far the entries are good for: a relay or a public address is for the internet, loopback for one machine.

    It tells what the addresses are for, not whether a firewall or a router lets peers in.
    """
    reach = Reach.MACHINE
    for entry in entries:
        if entry.relay is not None or any(map(is_public, entry.direct)):
            return Reach.INTERNET
        if not all(map(_is_loopback, entry.direct)):
            reach = Reach.NETWORK
    return reach


def _is_loopback(endpoint: str) -> bool:
    return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]")).is_loopback
