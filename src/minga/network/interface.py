"""The network seam: all that the rest of minga may know about the outside world.

Two implementations exist, iroh (real) and virtual (simulated); `minga.testing` has the suite that each must pass.
Code above this line is plain `asyncio`: it takes the time from the running loop, dates and sleep from `Network`,
and touches nothing else of the outside, so that it runs unchanged in both worlds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, NewType

import msgspec

from minga.core.aio import Observers

PeerId = NewType("PeerId", str)
"""A peer's Ed25519 public key as 64 lower-case hexadecimal digits."""

Endpoint = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{3,80}\Z")]
RelayUrl = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{3,256}\Z")]
MAX_ENDPOINTS = 16
MAX_LEARNED = 2
"""How many addresses a peer offers that others told it; a newer one takes the place of the oldest."""
Endpoints = Annotated[tuple[Endpoint, ...], msgspec.Meta(max_length=MAX_ENDPOINTS)]

Buffer = bytes | bytearray | memoryview


class Address(msgspec.Struct, frozen=True):
    """Where a peer can be dialled: its id, `ip:port` endpoints (IPv6 in brackets), and the URL of its relay if any.

    `direct` empty and `relay` None means that the peer cannot be dialled at all. Bounds are checked when one arrives.
    """

    peer_id: Annotated[PeerId, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    direct: Endpoints = ()
    relay: RelayUrl | None = None

    @property
    def dialable(self) -> bool:
        """Whether anything can be dialled at all."""
        return bool(self.direct) or self.relay is not None


class LinkFacts(msgspec.Struct, frozen=True):
    """Facts about one connection: smoothed round-trip time (seconds; None if unknown), the kind of path, and the bytes
    that crossed it so far.
    """

    round_trip_s: float | None
    path: Literal["direct", "relayed", "unknown"]
    bytes_sent: int
    bytes_received: int


class Stream(ABC):
    """A bidirectional, ordered, reliable byte stream with back-pressure in each direction.

    One task may write while another reads; two writers, or two readers, at once are a mistake of the caller.
    Every method may raise `UnreachableError` once the connection is lost or the other side reset the stream, and
    `ClosedError` after the network was closed here.
    """

    is_detour = False
    """Whether the network knows a better way for much traffic than the one that it took."""

    @abstractmethod
    async def write(self, data: Buffer) -> None:
        """Send all of `data`; returns when the transport took it, which waits while the other side is slow to read."""

    def write_now(self, data: bytes) -> bool:  # noqa: ARG002
        """Send a few bytes if that takes no waiting; False if it has to be done by `write`, as with some transports
        always. Not while a `write` is under way. Never raises.
        """
        return False

    @abstractmethod
    async def finish(self) -> None:
        """Say that nothing more will be written; the other side reads an end of stream after the last byte."""

    @abstractmethod
    async def read(self, max_bytes: int) -> bytes:
        """Return 1 to `max_bytes` bytes as soon as any are there, or b"" at the end of the stream."""

    @abstractmethod
    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `target` (a writable view of bytes) completely; `progress` is called with the number of bytes that
        arrived.

        It is called as bytes arrive, although some may not be decrypted yet, and counts each byte once. `filled` is
        called with the number of further bytes that are in their place, so soon that they are in the processor's cache.
        Raises `ProtocolError` if the stream ends first.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Abort both directions at once; buffered bytes are dropped; never raises, may be called twice."""


class Connection(ABC):
    """An encrypted connection to one authenticated peer; both sides may open streams."""

    @property
    @abstractmethod
    def peer_id(self) -> PeerId:
        """The id of the other side, proven by its key."""

    @abstractmethod
    async def open_stream(self, *, bulk: bool = False) -> Stream:
        """Open a stream. The other side learns of it with the first byte written.

        `bulk`: megabytes are to come, for which the network may take another way to the same peer than for the rest.

        Raises `UnreachableError` if the connection is lost.
        """

    @abstractmethod
    async def accept_stream(self) -> Stream:
        """Wait for the other side to open a stream.

        Raises `UnreachableError` when the connection is lost or closed, by either side.
        """

    @abstractmethod
    def facts(self) -> LinkFacts:
        """The present facts about the connection."""

    @property
    def round_trip_s(self) -> float | None:
        """Round-trip time in seconds as in the facts, which cost more; None if unknown."""
        return self.facts().round_trip_s

    @property
    @abstractmethod
    def seen_at(self) -> str | None:
        """The `ip:port` at which the other side answers, as this side sees it; None over a relay, or if unknown."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the connection is known to be gone."""

    @property
    def has_process_ended(self) -> bool:
        """Whether it is gone because the other side's process has ended, which some networks notice at once."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Close the connection and all its streams, and notify the other side; never raises, may be called twice."""


class Network(ABC):
    """One peer's access to the others."""

    @property
    @abstractmethod
    def peer_id(self) -> PeerId:
        """This peer's own id."""

    @property
    @abstractmethod
    def address(self) -> Address:
        """Where others can dial this peer at present; not `dialable` for a peer that only dials out."""

    @property
    @abstractmethod
    def on_address(self) -> Observers[[]]:
        """Told each time that `address` may have changed: a relay answered, or an address became known."""

    @abstractmethod
    async def announce(self, endpoint: str) -> None:
        """Offer `endpoint`, an `ip:port` that others told this peer, as one of at most `MAX_LEARNED` such; the oldest
        makes room. Without effect for a peer that only dials out, and for an endpoint that is no `ip:port`.
        """

    @abstractmethod
    def wall_time(self) -> float:
        """Seconds since the Unix epoch by this machine's (possibly wrong) clock."""

    @abstractmethod
    def steady_time(self) -> float:
        """Seconds since some moment by a clock that nobody sets, and which counts those that the machine sleeps."""

    @abstractmethod
    async def connect(self, address: Address) -> Connection:
        """Dial a peer and make sure that the key at the other end is `address.peer_id`.

        Raises `UnreachableError` if no peer with that key answers.
        """

    @abstractmethod
    async def can_dial(self, address: Address) -> bool:
        """Whether a peer to which that peer never connected can reach it at the endpoints of `address`, or through its
        relay: dials it with a new identity and hangs up. Without a relay in `address` none is used.

        Takes at most a few seconds and never raises `RemoteError`.
        """

    @abstractmethod
    async def accept(self) -> Connection:
        """Wait for the next peer that dials this one. Raises `ClosedError` once the network is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Say goodbye on every connection and free all sockets; may be called twice."""
