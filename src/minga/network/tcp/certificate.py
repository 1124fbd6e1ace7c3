"""Certificates for TCP connections between two peers that know each other already.

A network makes one self-signed certificate for its lifetime, and tells it to others over iroh connections only, where
keys are proven. A context made for a peer trusts that peer's certificate and no other: there are no authorities here,
and since machines' clocks may be wrong, certificates are valid for a century.

A certificate names the peer that has its key. Else a peer could tell the certificate of another one as its own and pass
the bytes of a connection on to that one, or back to where they come from: two peers that each prove who they are would
take each other for the one in the middle.
"""

from __future__ import annotations

import datetime as dt
import secrets
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from minga.network.interface import PeerId

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
        """A context for the side that was dialled. Without a peer it trusts no certificate, see `listener.py`.

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
