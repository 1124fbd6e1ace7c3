"""The authority as a web application (ASGI): bounds what comes in, and words what goes out."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from minga.authority.messages import (
    DEVICE_PATH,
    MAX_BODY_BYTES,
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
from minga.authority.server.issuer import Issuer
from minga.authority.server.nonces import Nonces
from minga.authority.server.providers import IdentityProvider
from minga.authority.server.rate_limit import RateLimit
from minga.authority.server.refusals import Refused
from minga.core.errors import StorageError
from minga.core.files import in_pieces

BODY_S = 10.0
"""Longest time, in seconds, that the body of a request may take to arrive."""

BURST, PER_SECOND = 60, 1.0
"""The requests that one address may make: a burst, and a rate per second after that."""

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
            Route(DEVICE_PATH, self._answering(self._device), methods=["POST"]),
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
            raise Refused(400, "bad_request", str(error)[:300]) from error
        if asked.run != self._run:
            raise Refused(400, "bad_request", "this authority is for another run")
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

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            address = request.client.host if request.client is not None else ""
            try:
                if (wait_s := self._rate.wait_s(address)) > 0.0:
                    raise Refused(429, "busy", "too many requests from this address; wait a little")
                answer = await handler(request)
                return answer if isinstance(answer, Response) else _response(answer)
            except Refused as refused:
                self._tell("authority.refused", address=address, code=refused.code, why=str(refused))
                retry = {"Retry-After": str(math.ceil(wait_s))} if wait_s > 0.0 else {}
                return _response(AuthorityRefusal(refused.code, _one_line(str(refused))), refused.status, retry)
            except StorageError as error:
                logger.error("%s", error)
                return _response(AuthorityRefusal("storage", "the authority's disk refused; try again later"), 503)

        return answer


_GUARDED = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:400]


async def _body(request: Request) -> bytes:
    """The body, bounded in length and time."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, "too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise Refused(408, "slow", "the request took too long to arrive") from error
    except ClientDisconnect as error:
        raise Refused(400, "bad_request", "the request broke off") from error
    return body


def _response(message: Message, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    fields = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(msgspec.json.encode(message), status, fields, media_type="application/json")


async def _no_such_thing(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Response(json.dumps({"code": "http", "message": "no such thing"}), status, media_type="application/json")
