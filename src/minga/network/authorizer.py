"""The gate: who is let in, as far as this room has to know.

A node asks it at the hellos of each connection, in both directions, and a board for the owner of each record. What
stands in a *credential*, and who may say so, is the business of whoever made the gate. `OpenAuthorizer` lets
everybody in.
"""

from __future__ import annotations

from typing import Protocol

from minga.network.interface import PeerId

MAX_CREDENTIAL_BYTES = 1152


class Authorizer(Protocol):
    """Decides who takes part."""

    def credential(self) -> bytes:
        """What this peer shows to others."""

    def meet(self, peer: PeerId, credential: bytes) -> None:
        """Somebody wants to be connected, and shows this. Raises `RejectedError` if it is not let in."""

    def learn(self, peer: PeerId, credential: bytes) -> bool:
        """Somebody told what `peer` shows; whether its records may be kept and passed on from now on."""

    def admits(self, peer: PeerId, record_name: str) -> bool:
        """Whether records of `peer` with this name may be kept and passed on. Asked for every record that comes."""

    def permits(self, peer: PeerId, method: str) -> bool:
        """Whether `peer`, which is connected, may call this method."""


class OpenAuthorizer:
    """The gate of a run that is open to everybody."""

    def credential(self) -> bytes:
        """Nothing."""
        return b""

    def meet(self, peer: PeerId, credential: bytes) -> None:
        """Everybody is let in."""

    def learn(self, peer: PeerId, credential: bytes) -> bool:  # noqa: ARG002
        """Everybody's records are kept."""
        return True

    def admits(self, peer: PeerId, record_name: str) -> bool:  # noqa: ARG002
        """Everybody's records are kept."""
        return True

    def permits(self, peer: PeerId, method: str) -> bool:  # noqa: ARG002
        """Everything may be called."""
        return True
