"""Kinds of NAT: what the router of a simulated host lets in, and which two hosts get a direct path.

A router gives a host that sends a *mapping*, an outer port, and *filters* what comes back to it. What follows for two
hosts is known from practice (RFC 4787, sections 4 and 5; RFC 5128, section 3): a host whose router lets anybody in is
dialled. Two hosts whose routers keep one mapping for all destinations *punch holes*: told by a relay, both send at
once, and each lets the other in. A symmetric router has another port for each destination, which the far router does
not expect, unless that router lets anybody in.
"""

from __future__ import annotations

from enum import StrEnum


class Nat(StrEnum):
    """What is between a simulated host and the internet."""

    NONE = "none"
    """Nothing: a public address of its own."""
    ONE_TO_ONE = "one-to-one"
    """The host has a private address, and everything that reaches its public one; so has a host with a forwarded port.
    It knows the public address, because that was announced."""
    FULL_CONE = "full-cone"
    """One outer port for all destinations, through which anybody gets in."""
    PORT_RESTRICTED = "port-restricted"
    """One outer port for all destinations, which lets in the addresses and ports to which the host has sent."""
    SYMMETRIC = "symmetric"
    """Another outer port for each destination, which lets in that destination only."""

    @property
    def lets_in(self) -> bool:
        """Whether any host that knows the public address gets in."""
        return self not in (Nat.PORT_RESTRICTED, Nat.SYMMETRIC)

    @property
    def has_one_port(self) -> bool:
        """Whether all destinations see the host at the same port."""
        return self is not Nat.SYMMETRIC


def punches(one: Nat, other: Nat) -> bool:
    """Whether two hosts get a direct path once a relay has told each of the other."""
    return one.lets_in or other.lets_in or (one.has_one_port and other.has_one_port)
