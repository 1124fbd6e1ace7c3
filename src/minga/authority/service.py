"""The authority as a web application (ASGI): bounds what comes in, and words what goes out."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from minga.authority.issuer import Issuer
from minga.authority.providers import IdentityProvider
from minga.authority.refusals import Refused
from minga.core.errors import StorageError
from minga.core.files import in_pieces
from minga.core.printable import printable
from minga.core.urls import network_of
from minga.login.messages import (
    DEVICE_PATH,
    MAX_BODY_BYTES,
    NONCE_BYTES,
    OFFER_PATH,
    TOKEN_PATH,
    AuthorityRefusal,
    ByKey,
    Issued,
    LoginOffer,
    Message,
    Pending,
    SignedRequest,
    TokenAnswer,
    decode,
)

BODY_S = 10.0
"""Longest time, in seconds, that the body of a request may take to arrive."""

BURST, PER_SECOND = 240, 4.0
"""The requests that one address may make: a burst, and a rate per second after that. Many people may share it."""

OF_A_FAILURE = 4.0
"""As so many requests one counts that proves no identity, is malformed or begins a login in the browser: nobody has to
make many of these.
"""

MAX_ADDRESSES, MAX_NONCES = 20_000, 50_000
NONCE_S = 60.0

Tell = Callable[..., None]
Handler = Callable[[Request], Awaitable[Message | Response]]

logger = logging.getLogger("minga.authority")


@dataclass(frozen=True)
class Handout:
    """A file that every person may have: where it is, its content and its media type."""

    path: str
    data: bytes
    kind: str


class Authority:
    """Answers requests, and hands out files. `tell(kind, **fields)` hears of each token and each refusal; no secret is
    among the fields.
    """

    def __init__(
        self,
        issuer: Issuer,
        provider: IdentityProvider,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
        handouts: Sequence[Handout] = (),
    ) -> None:
        self._issuer, self._provider, self._tell = issuer, provider, tell
        self._nonces, self._rate = Nonces(clock), RateLimit(BURST, PER_SECOND, clock)
        self._run = bytes.fromhex(issuer.run_id)
        routes = [
            *(Route(each.path, self._answering(self._handing_out(each)), methods=["GET"]) for each in handouts),
            Route(OFFER_PATH, self._answering(self._offer), methods=["GET"]),
            Route(DEVICE_PATH, self._answering(self._device, OF_A_FAILURE), methods=["POST"]),
            Route(TOKEN_PATH, self._answering(self._token), methods=["POST"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_thing})

    # ---- what can be asked

    async def _offer(self, _: Request) -> LoginOffer:
        return LoginOffer(self._run, self._provider.label, self._provider.ways, self._nonces.give())

    async def _device(self, _: Request) -> Message:
        return await self._provider.begin_device()

    async def _token(self, request: Request) -> Message:
        try:
            asked = decode(await _body(request), SignedRequest).open()
        except ValueError as error:
            raise Refused("bad_request", str(error)[:300]) from error
        if asked.run != self._run:
            raise Refused("bad_request", "this authority is for another run")
        self._nonces.use(asked.nonce)
        peer = asked.peer.hex()
        issued: Issued | Pending
        if isinstance(asked.login, ByKey):
            issued = self._issuer.renew(peer)
        else:
            person = await self._provider.identify(asked.login)
            issued = person if isinstance(person, Pending) else self._issuer.issue(peer, person)
        if isinstance(issued, Issued):
            self._tell("authority.issued", peer=peer, name=issued.name, renewed=isinstance(asked.login, ByKey))
        return TokenAnswer(issued)

    @staticmethod
    def _handing_out(handout: Handout) -> Handler:
        async def answer(_: Request) -> Response:
            headers = {**_GUARDED, "Content-Length": str(len(handout.data)), "Cache-Control": "no-cache"}
            return StreamingResponse(in_pieces(handout.data), media_type=handout.kind, headers=headers)

        return answer

    # ---- how it is answered

    def _answering(self, handler: Handler, requests: float = 1.0) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            address = request.client.host if request.client is not None else ""
            try:
                if (wait_s := self._rate.wait_s(address, requests)) > 0.0:
                    raise Refused("busy", "too many requests from this address; wait a little")
                answer = await handler(request)
                return answer if isinstance(answer, Response) else _response(answer)
            except Refused as refused:
                if refused.code in ("login", "bad_request"):
                    self._rate.charge(address, OF_A_FAILURE - requests)
                why = printable(str(refused))[:400]
                self._tell("authority.refused", address=printable(address)[:64], code=refused.code, why=why)
                retry = {"Retry-After": str(math.ceil(wait_s))} if wait_s > 0.0 else {}
                return _response(AuthorityRefusal(refused.code, why), refused.status, retry)
            except StorageError as error:
                logger.error("%s", error)
                return _response(AuthorityRefusal("storage", "the authority's disk refused; try again later"), 503)

        return answer


_GUARDED = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


async def _body(request: Request) -> bytes:
    """The body, bounded in length and time."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused("too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise Refused("slow", "the request took too long to arrive") from error
    except ClientDisconnect as error:
        raise Refused("slow", "the request broke off") from error
    return body


def _response(message: Message, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    fields = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(msgspec.json.encode(message), status, fields, media_type="application/json")


async def _no_such_thing(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Response(json.dumps({"code": "http", "message": "no such thing"}), status, media_type="application/json")


class Nonces:
    """The nonces given out and not used yet; the oldest go first. `clock` is in seconds, from any beginning."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._given: dict[bytes, float] = {}

    def give(self) -> bytes:
        """A new nonce, good for a minute."""
        if len(self._given) >= MAX_NONCES:
            del self._given[next(iter(self._given))]
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._given[nonce] = self._clock()
        return nonce

    def use(self, nonce: bytes) -> None:
        """Raises `Refused` unless this is the first use of a nonce that was given out within the last minute."""
        given_s = self._given.pop(nonce, None)
        if given_s is None or self._clock() - given_s > NONCE_S:
            raise Refused("nonce", "the nonce was used before, has expired or was never given; ask for another")


class RateLimit:
    """A bucket of `burst` requests for each address, which fills up again by `per_second`.

    All addresses of one `network_of` are one address.
    """

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, address: str, requests: float = 1.0) -> float:
        """Count one request, as so many; 0.0, or in how many seconds the next may come."""
        left = self.charge(address, 0.0)
        if left < 1.0:
            return (1.0 - left) / self._per_second
        self.charge(address, requests)
        return 0.0

    def charge(self, address: str, requests: float) -> float:
        """Count so many, even beyond the bound: those that are under way are not known yet. How many are left."""
        key, now = network_of(address), self._clock()
        left, since = self._buckets.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_second) - requests
        if len(self._buckets) >= MAX_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = left, now
        return left
