"""The TCP port of a network: it admits only peers that were invited over iroh.

Theory of operation. In the first message of the TLS handshake (as server name) the dialling peer names the invitation
that it follows: a random word that the two peers exchanged over iroh. Nothing is computed for an unknown word, so a
stranger costs a packet. For a known one, the handshake goes on with a context that trusts the invited peer's
certificate only. The word travels in the clear and opens nothing by itself. Connections in the handshake are bounded in
time and number, and dropped from the oldest on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from minga.core.aio import end
from minga.network.interface import PeerId
from minga.network.tcp.certificate import Certificate
from minga.network.tcp.greeting import TcpGreeting

HANDSHAKE_S = 5.0
"""Seconds that a handshake may take, for either side."""

MAX_HALF_OPEN = 64
BACKLOG = 16

logger = logging.getLogger("minga.network")


class Invitation(NamedTuple):
    """One invitation: the peer that a word admits, the TLS context for it, and the callback that takes the connection
    and the first byte.

    `adopt` says whether it takes it; it may raise `OSError`.
    """

    certificate: bytes
    context: ssl.SSLContext
    adopt: Callable[[TcpGreeting, int], bool]


class TcpListener:
    """Listens for one network, and has what it takes to dial others. `make` it on the running loop."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate
        self.port = 0
        """Where others can dial; 0 if nowhere."""
        self._context = certificate.server_context(None)
        self._context.sni_callback = self._choose
        self._invited: dict[str, Invitation] = {}
        self._welcoming: dict[asyncio.Task[None], TcpGreeting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def make(cls, owner: PeerId, listen_at: tuple[str | None, int] | None) -> TcpListener | None:
        """Listen for `owner` at a host (None: all interfaces) and port, or if that is taken at any; not without one.

        Without success `port` is 0. Returns None if even dialling is impossible here.
        """
        try:
            listener = cls(Certificate(owner))
        except OSError as error:  # nowhere to put a temporary file
            logger.debug("no TCP: %s", error)
            return None
        if listen_at is not None:
            await listener._listen(*listen_at)
        return listener

    def invite(self, word: str, certificate: bytes, adopt: Callable[[TcpGreeting, int], bool]) -> None:
        """Let in, until `forget`, who says `word` and proves to have `certificate`.

        Raises `OSError` (`ssl.SSLError` is one) or `ValueError` if the certificate is none.
        """
        self._invited[word] = Invitation(certificate, self.certificate.server_context(certificate), adopt)

    def forget(self, word: str) -> None:
        """Admit no connection by this word any more."""
        self._invited.pop(word, None)

    async def close(self) -> None:
        """Stop listening and drop what is half open; may be called twice."""
        if self._server is not None:
            self._server.close()
        await end(*self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- inner workings

    async def _listen(self, host: str | None, port: int) -> None:
        for wanted in (port, 0):
            try:
                listening = _bind(host, wanted)
            except OSError as error:
                logger.debug("cannot listen on TCP port %d: %s", wanted, error)
                continue
            self.port = listening.getsockname()[1]
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._begin, sock=listening, backlog=BACKLOG)
            return

    def _choose(self, tls: ssl.SSLObject, word: str | None, _: ssl.SSLContext) -> int | None:
        """Called within a handshake, as soon as the other side said its word."""
        invitation = self._invited.get(word or "")
        if invitation is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        tls.context = invitation.context
        return None

    def _begin(self) -> TcpGreeting:
        greeting = TcpGreeting(lambda arrived, unsent: self._context.wrap_bio(arrived, unsent, server_side=True))
        if len(self._welcoming) >= MAX_HALF_OPEN:  # honest ones are over within a few round trips
            self._welcoming.pop(next(iter(self._welcoming))).abort()
        task = asyncio.get_running_loop().create_task(self._welcome(greeting))
        self._welcoming[task] = greeting
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: self._welcoming.pop(task, None))
        return greeting

    async def _welcome(self, greeting: TcpGreeting) -> None:
        """Complete the handshake, make sure who it is, and hand the connection over."""
        taken = False
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await greeting.shake_hands()
                taken = self._hand_over(greeting, (await greeting.hear_greeting())[0])
        except (TimeoutError, OSError) as error:
            logger.debug("a TCP connection was not let in: %s", error)
        finally:
            if not taken:
                await greeting.close()

    def _hand_over(self, greeting: TcpGreeting, first: int) -> bool:
        for invitation in self._invited.values():
            if invitation.context is greeting.tls.context:
                # The context trusts all that the certificate's key has signed; the peer announced this certificate.
                return greeting.tls.getpeercert(True) == invitation.certificate and invitation.adopt(greeting, first)
        return False


def _bind(host: str | None, port: int) -> socket.socket:
    if host is not None:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
