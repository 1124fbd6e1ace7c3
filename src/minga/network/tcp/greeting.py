"""The beginning of a TCP connection, driven by the event loop: from its first byte until both sides have keys.

Theory of operation. The two ends exchange keys (`KeyExchange`). Then what is sent and what comes is sealed, and the
connection goes on as a `SealedChannel`, which takes over the socket and the records that came already.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from minga.network.tcp.sealed_channel import IDLE_BUFFER_BYTES, SealedChannel, abort_at_once
from minga.network.tcp.sealed_records import KEY_BYTES, RecordOpener, RecordSealer

# ---- How two peers agree on the keys of a connection: TLS 1.3 up to the first word that each side says.
#
# Theory of operation. The TLS handshake proves both certificates and makes secrets that nobody who records the
# connection can find out later (each has a fresh Diffie-Hellman key). Under these each side sends one word and a
# random key, with which it seals all that it sends from then on. So a key is known to these two peers alone, it is
# good for one direction of one connection (the other side's key is refused as one's own), and a side that got it knows
# who has it, too. The side that dialled says its word first; nobody sends records before it heard the word of the
# other side.


WORD_BYTES = 1


class KeyExchange:
    """One side's part; it reads and writes buffers. `secure` makes the TLS object from these.

    Its methods raise `ssl.SSLError` if the other side does not keep to TLS or is not who it should be, and
    `ssl.SSLWantReadError` as long as more has to `arrive`: then call them again.
    """

    def __init__(self, secure: Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]) -> None:
        self._arrived, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = secure(self._arrived, self._unsent)
        """The TLS object, which knows the peer at the other end."""
        self.key = secrets.token_bytes(KEY_BYTES)
        """What this side seals with, once it said its word."""
        self._heard = bytearray()

    def arrive(self, data: memoryview) -> None:
        """Take bytes that came over the connection."""
        self._arrived.write(data)

    def unsent(self) -> bytes:
        """What has to be sent now."""
        return self._unsent.read()

    def shake_hands(self) -> None:
        """Go on with the TLS handshake; returns when it is over."""
        self.tls.do_handshake()

    def say(self, word: bytes) -> None:
        """Send this side's word (one byte) and key."""
        self.tls.write(word + self.key)

    def hear(self) -> tuple[bytes, bytes]:
        """The word and the key of the other side."""
        while missing := WORD_BYTES + KEY_BYTES - len(self._heard):
            data = self.tls.read(missing)
            if not data:
                raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "the other side ended TLS")
            self._heard += data
        if self._heard[WORD_BYTES:] == self.key:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "it said the key of this side")
        return bytes(self._heard[:WORD_BYTES]), bytes(self._heard[WORD_BYTES:])

    def rest(self) -> bytes:
        """What came behind the other side's word: records already."""
        if self.tls.pending():
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "it said more than one word")
        return self._arrived.read()


T = TypeVar("T")


class TcpGreeting(asyncio.BufferedProtocol):
    """A connection whose ends do not know each other yet. `secure` makes the TLS object from its two buffers.

    Call `shake_hands`, then `greet` at the side that dialled; `hear_greeting` and `welcome` at the other. All of these
    raise `OSError` (`ssl.SSLError` is one) if TLS or the connection fails.
    """

    def __init__(self, secure: Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]) -> None:
        self._exchange = KeyExchange(secure)
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._woken = asyncio.Event()
        self._reading_into = memoryview(bytearray(IDLE_BUFFER_BYTES))
        self._bytes_sent = self._bytes_received = 0
        self._other_key = b""

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS object, which knows the peer at the other end."""
        return self._exchange.tls

    async def shake_hands(self) -> None:
        """Complete the TLS handshake."""
        await self._agree(self._exchange.shake_hands)

    async def greet(self, word: bytes, answer: bytes) -> SealedChannel:
        """Say a word (one byte), and wait for this answer.

        Raises `ConnectionRefusedError` if the other side gives another one.
        """
        self._exchange.say(word)
        heard, self._other_key = await self._agree(self._exchange.hear)
        if heard != answer:
            raise ConnectionRefusedError("it does not welcome this connection")
        return self._go_on()

    async def hear_greeting(self) -> bytes:
        """Wait for the word of the side that dialled."""
        word, self._other_key = await self._agree(self._exchange.hear)
        return word

    def welcome(self, word: bytes) -> SealedChannel:
        """Answer it."""
        self._exchange.say(word)
        self._flush()
        return self._go_on()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            abort_at_once(self._transport)
        self._lose("the connection was closed")

    async def close(self) -> None:
        """Abort, and wait until the socket is closed; not for a connection that went on."""
        self.abort()
        if self._transport is not None and self._transport.get_protocol() is self:
            await asyncio.shield(self._gone)

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio`."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            # The event loop does so for sockets that dial, and not for those of a listener that it did not make itself:
            # without it each small answer waits some 40 ms for the acknowledgement of the one before.
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._lost is not None:
                transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """See `asyncio`."""
        return self._reading_into

    def buffer_updated(self, size: int) -> None:
        """See `asyncio`."""
        self._bytes_received += size
        self._exchange.arrive(self._reading_into[:size])
        self._woken.set()

    def eof_received(self) -> None:
        """See `asyncio`; what stops sending here will not listen either."""

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio`."""
        self._lose(str(error) if error else "the other side closed the connection")
        if not self._gone.done():
            self._gone.set_result(None)

    # ---- inner workings

    async def _agree(self, step: Callable[[], T]) -> T:
        """Do what has to be done until a step of the exchange is over."""
        while self._lost is None:
            self._woken.clear()
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
                await self._woken.wait()
            else:
                self._flush()
                return done
        raise ConnectionResetError(self._lost)

    def _flush(self) -> None:
        if self._transport is not None and self._lost is None and not self._transport.is_closing():
            data = self._exchange.unsent()
            self._bytes_sent += len(data)
            self._transport.write(data)

    def _go_on(self) -> SealedChannel:
        """Both words are said: what is sent and comes from now on is sealed."""
        if self._transport is None or self._lost is not None:
            raise ConnectionResetError(self._lost)
        rest = self._exchange.rest()
        opener = RecordOpener(self._other_key, max(IDLE_BUFFER_BYTES, len(rest)))
        opener.room()[: len(rest)] = rest
        opener.came(len(rest))
        channel = SealedChannel(self._transport, RecordSealer(self._exchange.key), opener)
        channel.bytes_sent, channel.bytes_received = self._bytes_sent, self._bytes_received
        self._transport.set_protocol(channel)
        return channel

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self._woken.set()
