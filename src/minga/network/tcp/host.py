"""The iroh connection as its TCP lane sees it."""

from __future__ import annotations

from typing import Protocol

from minga.core.errors import MingaError
from minga.network.interface import PeerId, Stream


class LaneHost(Protocol):
    """What a lane needs of the iroh connection that it belongs to."""

    @property
    def peer_id(self) -> PeerId:
        """The peer at the other end."""

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong."""

    def remote_ip(self) -> str | None:
        """The IP address at which the other side answers at present; None if a relay is in between."""

    @property
    def round_trip_s(self) -> float | None:
        """Round-trip time in seconds; None if it is unknown."""

    async def send_control(self, body: bytes) -> None:
        """Send a message to the lane at the other end. Raises `RemoteError`."""

    def arrived(self, stream: Stream) -> None:
        """Take a stream that the other side opened."""

    def wonder(self) -> None:
        """No TCP connection is left and the other side ended one, as the system of a process that dies ends all."""
