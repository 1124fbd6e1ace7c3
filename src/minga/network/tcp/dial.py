"""The offers that two peers exchange over iroh about TCP, and dialling by them."""

from __future__ import annotations

import asyncio
import ssl
from typing import Annotated, Any

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError
from minga.network.interface import PeerId
from minga.network.tcp.certificate import MAX_CERTIFICATE_BYTES
from minga.network.tcp.greeting import TcpGreeting
from minga.network.tcp.listener import HANDSHAKE_S
from minga.network.tcp.sealed_channel import SealedChannel

MAX_CONTROL_BYTES = 4096
"""Largest message about TCP."""

DIALLER_OPENS, DIALLED_OPENS = 0, 1
"""The dialler's first byte: which side opens streams on this connection."""
WELCOME = b"\x01"
"""The answer to it: the dialler is who it should be, and its connection is wanted."""


class LaneOffer(msgspec.Struct, frozen=True, tag="seal"):
    """Where to dial (port 0: nowhere), with which certificate the sender will prove itself, and the word to say.

    Builds that do not seal records call theirs "offer", and no TCP connection comes about with them.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    certificate: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CERTIFICATE_BYTES)]
    word: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class DialRequest(msgspec.Struct, frozen=True, tag="ask"):
    """Please dial me, for streams that I open."""


Control = LaneOffer | DialRequest


def encode(message: Control) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(body: bytes, peer: PeerId) -> Control:
    """The message in `body`. Raises `ProtocolError` if there is none."""
    try:
        message: Any = decode_msgpack(body, Control)
    except DECODING_ERRORS as error:
        raise ProtocolError(f"malformed message about TCP: {error}", peer=peer) from error
    return message  # type: ignore[no-any-return]


async def dial(host: str, offer: LaneOffer, context: ssl.SSLContext, role: int) -> SealedChannel:
    """Connect to who made `offer`, at the IP address `host`; `context` trusts its certificate only.

    Raises `OSError` (`ssl.SSLError` and `TimeoutError` are some) if no peer answers there, or another one does.
    """
    greeting = TcpGreeting(lambda arrived, unsent: context.wrap_bio(arrived, unsent, server_hostname=offer.word))
    made = False
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.get_running_loop().create_connection(lambda: greeting, host, offer.port)
            await greeting.shake_hands()
            if greeting.tls.getpeercert(True) != offer.certificate:
                raise ConnectionRefusedError("it has another certificate than it told")
            channel = await greeting.greet(bytes([role]), WELCOME)
        made = True
        return channel
    finally:
        if not made:
            await greeting.close()
