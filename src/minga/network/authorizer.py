"""Authorizers: which peers a node admits, as far as this package has to know.

A node asks its authorizer in the handshake of each connection, in both directions, and a board asks it for the owner of
each record. The program that made the authorizer defines what a *credential* contains and which keys may sign it.
`OpenAuthorizer` admits every peer.
"""

from __future__ import annotations

from typing import Protocol

from minga.network.interface import PeerId

MAX_CREDENTIAL_BYTES = 1152


class Authorizer(Protocol):
    """Decides who takes part."""

    def credential(self) -> bytes:
        """The credential that this peer shows to others."""

    def meet(self, peer: PeerId, credential: bytes) -> None:
        """Check the credential of a peer that connects. Raises `RejectedError` if the peer is not admitted."""

    def learn(self, peer: PeerId, credential: bytes) -> bool:
        """Take a credential of `peer` that another peer passed on. Returns whether the records of `peer` may be kept
        and passed on from now on.
        """

    def admits(self, peer: PeerId, record_name: str) -> bool:
        """Whether records of `peer` with this name may be kept and passed on. Asked for every record that comes."""

    def permits(self, peer: PeerId | None, method: str) -> bool:
        """Whether `peer`, which is connected, may call this method; None: one that is refused."""


class OpenAuthorizer:
    """The authorizer of a run that is open to every peer."""

    def credential(self) -> bytes:
        """Nothing."""
        return b""

    def meet(self, peer: PeerId, credential: bytes) -> None:
        """Every peer is admitted."""

    def learn(self, peer: PeerId, credential: bytes) -> bool:  # noqa: ARG002
        """Everybody's records are kept."""
        return True

    def admits(self, peer: PeerId, record_name: str) -> bool:  # noqa: ARG002
        """Everybody's records are kept."""
        return True

    def permits(self, peer: PeerId | None, method: str) -> bool:  # noqa: ARG002
        """Everything may be called."""
        return True
