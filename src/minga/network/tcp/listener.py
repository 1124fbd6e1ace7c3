"""The TCP port of a network: it admits only peers that were invited over iroh.

Theory of operation. In the first message of the TLS handshake (as server name) the dialling peer names the invitation
that it follows: a random word that the two peers exchanged over iroh. Nothing is computed for an unknown word, so a
stranger costs a packet. For a known one, the handshake goes on with a context that trusts the invited peer's
certificate only. The word travels in the clear and opens nothing by itself. Connections in the handshake are bounded in
time and number, and dropped from the oldest on.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import secrets
import socket
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from minga.core.aio import end, spawn
from minga.network.interface import PeerId
from minga.network.tcp.greeting import TcpGreeting

# ---- Certificates for TCP connections between two peers that know each other already.
#
# A network makes one self-signed certificate for its lifetime, and tells it to others over iroh connections only,
# where keys are proven. A context made for a peer trusts that peer's certificate and no other: there are no
# authorities here, and since machines' clocks may be wrong, certificates are valid for a century.
#
# A certificate names the peer that has its key. Else a peer could tell the certificate of another one as its own and
# pass the bytes of a connection on to that one, or back to where they come from: two peers that each prove who they
# are would take each other for the one in the middle.


MAX_CERTIFICATE_BYTES = 1024
"""Ours have about 420 bytes."""

_VALID_FROM = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_VALID_UNTIL = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


class Certificate:
    """A fresh key (EC P-256) and its self-signed certificate, which names its `owner`; `der` is sent to others."""

    def __init__(self, owner: PeerId) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(owner)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        signed = builder.not_valid_before(_VALID_FROM).not_valid_after(_VALID_UNTIL).sign(key, hashes.SHA256())
        self.der = signed.public_bytes(Encoding.DER)
        self._password = secrets.token_hex(16).encode()
        encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(self._password))
        self._pem = encrypted + signed.public_bytes(Encoding.PEM)

    def server_context(self, peer: bytes | None) -> ssl.SSLContext:
        """A context for the side that was dialled. Without a peer it trusts no certificate.

        Raises `ssl.SSLError` if `peer` is no certificate in DER, `OSError` without a place for temporary files.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER, peer)
        context.num_tickets = 0  # connections are kept instead of being resumed
        return context

    def client_context(self, peer: bytes) -> ssl.SSLContext:
        """A context for the side that dials; raises the same."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, peer)

    def _context(self, protocol: int, peer: bytes | None) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if peer is not None:
            context.load_verify_locations(cadata=peer)
        # The ssl module takes keys from files only. What stands there for a moment is encrypted by a password that
        # stands nowhere.
        with tempfile.TemporaryDirectory(prefix="minga-") as folder:
            file = Path(folder) / "certificate"
            file.write_bytes(self._pem)
            context.load_cert_chain(file, password=self._password)
        return context


def check_owner(certificate: bytes, peer: PeerId) -> None:
    """Raise `ValueError` if `peer` told the certificate (DER) of another peer as its own.

    Nothing is parsed: an honest peer's certificate, which is what could be passed on, has no other name anywhere.
    """
    if _name(peer).public_bytes() not in certificate:
        raise ValueError("its certificate does not name it")


def _name(owner: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, owner)])


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
        self._servers: list[asyncio.Server] = []

    @classmethod
    async def make(cls, owner: PeerId, hosts: Sequence[str], port: int) -> TcpListener | None:
        """Listen for `owner` at these IP addresses, all with one port: `port`, or if that is taken, any.

        Without success `port` is 0. Returns None if even dialling is impossible here.
        """
        try:
            listener = cls(Certificate(owner))
        except OSError as error:  # nowhere to put a temporary file
            logger.debug("no TCP: %s", error)
            return None
        for bound in _bind(hosts, port):
            listener.port = bound.getsockname()[1]
            server = await asyncio.get_running_loop().create_server(listener._begin, sock=bound, backlog=BACKLOG)
            listener._servers.append(server)
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
        for server in self._servers:
            server.close()
        await end(*self._tasks)
        for server in self._servers:
            await server.wait_closed()

    # ---- inner workings

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
        task = spawn(self._welcome(greeting), self._tasks)
        self._welcoming[task] = greeting
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


def _bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """A socket for each host that has one to give, all with one port; another one than `port` where the first of them
    cannot have that.
    """
    bound: list[socket.socket] = []
    for host in hosts:
        for wanted in (bound[0].getsockname()[1],) if bound else (port, 0):
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                bound.append(socket.create_server((host, wanted), family=family))
                break
            except OSError as error:
                logger.debug("cannot listen on TCP port %d of %s: %s", wanted, host, error)
    return bound
