"""The messages between the authority and its clients, as JSON over HTTP."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.identity.access.orders import Key, SignatureBytes, UnixSeconds
from minga.identity.access.token import MAX_TOKEN_BYTES
from minga.identity.keys.keys import Identity, verify

REQUEST_CONTEXT = b"authority-request"
MAX_BODY_BYTES = 8192
"""Longest body of a request or an answer."""

NONCE_BYTES = 16

OFFER_PATH, DEVICE_PATH, TOKEN_PATH = "/v1/offer", "/v1/device", "/v1/token"

_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
"""Terminals show these texts of others, and obey control characters."""

Text = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PRINTABLE)]
Secret = Annotated[str, Meta(min_length=1, max_length=1000)]
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
Way = Annotated[str, Meta(max_length=32)]
"""One of "code", "token" and "device", or one that a later version of the authority offers."""


T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """Base of everything on the wire."""


class ByCode(Message, frozen=True, tag="code", tag_field="way"):
    """A name and the secret code that the authority's operator gave to that person."""

    name: Text
    code: Secret


class ByAccessToken(Message, frozen=True, tag="token", tag_field="way"):
    """An access token of the identity provider."""

    token: Secret


class ByDevice(Message, frozen=True, tag="device", tag_field="way"):
    """A login in the browser that was begun before."""

    device: Text


class ByKey(Message, frozen=True, tag="key", tag_field="way"):
    """The peer got a token before, and wants the next one."""


LoginWay = ByCode | ByAccessToken | ByDevice | ByKey


class TokenRequest(Message, frozen=True):
    """Asks for a token for the key `peer` in the run `run`."""

    run: Key
    peer: Key
    nonce: Nonce
    login: LoginWay


class SignedRequest(Message, frozen=True):
    """A `TokenRequest` as JSON, and the signature of these bytes by its peer's key."""

    request: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES)]
    signature: SignatureBytes

    @classmethod
    def sign(cls, request: TokenRequest, peer: Identity) -> SignedRequest:
        """Sign a request with the key that it names."""
        body = msgspec.json.encode(request)
        return cls(body, peer.sign(body, context=REQUEST_CONTEXT))

    def open(self) -> TokenRequest:
        """The request. Raises `ValueError` if it is malformed or was signed by another key."""
        request = decode(self.request, TokenRequest)
        if not verify(request.peer.hex(), self.signature, self.request, context=REQUEST_CONTEXT):
            raise ValueError("the signature is not that of the peer's key")
        return request


class LoginOffer(Message, frozen=True):
    """The facts that a client needs for a request: the run, the provider's name, the ways to log in, and a nonce."""

    run: Key
    provider: Text
    ways: Annotated[tuple[Way, ...], Meta(max_length=16)]
    nonce: Nonce


class DeviceCode(Message, frozen=True):
    """A login in the browser: the person opens `url` and enters `code`; the client asks every `interval_s` seconds."""

    device: Text
    url: Text
    code: Text
    interval_s: Seconds
    expires_s: Seconds


class Issued(Message, frozen=True, tag="issued", tag_field="kind"):
    """A token, the name it was given to, and until when (Unix seconds) it is renewed without another login."""

    token: Annotated[bytes, Meta(max_length=MAX_TOKEN_BYTES)]
    name: Text
    login_until: UnixSeconds


class Pending(Message, frozen=True, tag="pending", tag_field="kind"):
    """The person has not finished in the browser; ask again after this many seconds."""

    interval_s: Seconds


class TokenAnswer(Message, frozen=True):
    """The answer to a request for a token."""

    answer: Issued | Pending


class AuthorityRefusal(Message, frozen=True):
    """Why not: `code` is for programs, `message` for people."""

    code: Annotated[str, Meta(max_length=40)]
    message: Annotated[str, Meta(max_length=400, pattern=_PRINTABLE)]


def decode(body: bytes, kind: type[T]) -> T:
    """Read one message. Raises `ValueError`, whose text repeats no secret."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"more than {MAX_BODY_BYTES} bytes")
    try:
        return decode_json(body, kind)
    except DECODING_ERRORS as error:
        raise ValueError(f"malformed: {error}") from error
