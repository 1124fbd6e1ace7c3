"""How two peers agree on the keys of a connection: TLS 1.3 up to the first word that each side says.

Theory of operation. The TLS handshake proves both certificates and makes secrets that nobody who records the connection
can find out later (each has a fresh Diffie-Hellman key). Under these each side sends one word and a random key, with
which it seals all that it sends from then on. So a key is known to these two peers alone, it is good for one direction
of one connection (the other side's key is refused as one's own), and a side that got it knows who has it, too. The side
that dialled says its word first; nobody sends records before it heard the word of the other side.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable

from minga.network.tcp.sealed_records import KEY_BYTES

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
