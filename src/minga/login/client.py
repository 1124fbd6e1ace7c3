"""The client of an authority: asks for tokens, and again where that may help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx2
import msgspec

from minga.core.errors import ProtocolError, RejectedError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.core.urls import is_safe_url
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.login.http import HttpAnswer, NoAnswer, ask, make_client
from minga.login.messages import (
    DEVICE_PATH,
    MAX_BODY_BYTES,
    OFFER_PATH,
    TOKEN_PATH,
    AuthorityRefusal,
    DeviceCode,
    Issued,
    LoginOffer,
    LoginWay,
    Message,
    Pending,
    SignedRequest,
    TokenAnswer,
    TokenRequest,
    decode,
)

PHASE = "login"
ATTEMPTS = 6
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
BUSY_PER_ATTEMPT = 2
"""So many times too early count as one attempt: people behind one address, who all begin at once, wait for minutes."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class LoginNeeded(RejectedError):
    """The peer's key alone is not enough any more: its person has to log in."""


class AuthorityClient:
    """Speaks to the authority at `url` for the run `run_id`.

    It makes up to `attempts` attempts; `sleep` waits between them. Before each wait `on_pause` is called with the
    reason and the seconds.
    """

    def __init__(
        self,
        url: str,
        run_id: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_pause: Callable[[str, float], None] | None = None,
    ) -> None:
        self.url, self._run_id = url.rstrip("/"), run_id
        self._http, self._attempts, self._sleep, self._on_pause = make_client(transport), attempts, sleep, on_pause

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()

    async def offer(self) -> LoginOffer:
        """How to log in, and a nonce. Raises `RemoteError`, like all that follows."""
        return await self._patiently(self._offer)

    async def begin_device(self) -> DeviceCode:
        """Begin a login in the browser."""
        device = await self._patiently(lambda: self._ask("POST", DEVICE_PATH, DeviceCode))
        if not is_safe_url(device.url):
            raise ProtocolError(f"the authority {self.url} names no https:// address to log in at", phase=PHASE)
        return device

    async def token(
        self, peer: Identity, login: LoginWay, *, is_patient: bool = True
    ) -> tuple[Token, Issued] | Pending:
        """A token for the key of `peer`, or that the browser has to be waited for. Who can do without one is not
        `is_patient`: for them too early is an attempt like others.

        Raises `RejectedError` at once if the answer is no, `LoginNeeded` if another way of login is needed, and
        `UnreachableError` if no authority answers after several attempts.
        """
        return await self._patiently(lambda: self._token(peer, login), is_patient=is_patient)

    # ---- inner workings

    async def _offer(self) -> LoginOffer:
        offer = await self._ask("GET", OFFER_PATH, LoginOffer)
        if offer.run.hex() != self._run_id:
            raise RejectedError(
                f"the authority {self.url} is for another run; ask for a new link", code=RefusalCode.ACCESS
            )
        return offer

    async def _token(self, peer: Identity, login: LoginWay) -> tuple[Token, Issued] | Pending:
        offer = await self._offer()
        request = TokenRequest(offer.run, bytes.fromhex(peer.peer_id), offer.nonce, login)
        answer = await self._send("POST", TOKEN_PATH, SignedRequest.sign(request, peer))
        issued = self._read(answer, TokenAnswer).answer
        if isinstance(issued, Pending):
            return issued
        try:
            token = Token.decode(issued.token)
        except ValueError as error:
            raise ProtocolError(f"the authority {self.url} sent {error}", phase=PHASE) from error
        if token.grant is None or token.grant.run != request.run or not token.is_bound_to(peer.peer_id):
            raise ProtocolError(f"the authority {self.url} sent a token for something else", phase=PHASE)
        return token, issued

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], *, is_patient: bool = True) -> T:
        """Try again with growing pauses where the authority, or its provider, does not answer; a no is a no."""
        pause_s, left = FIRST_PAUSE_S, self._attempts * BUSY_PER_ATTEMPT
        while True:
            try:
                return await attempt()
            except _Again as again:
                left -= 1 if again.is_early and is_patient else BUSY_PER_ATTEMPT
                if left <= 0:
                    raise UnreachableError(
                        f"the authority {self.url}, where people log in to this run, cannot be used: {again}. "
                        "Try again later, or tell the organiser",
                        phase=PHASE,
                    ) from again
                wait_s = min(MOST_PAUSE_S, max(pause_s, again.after_s or 0.0))
                if again.is_early:  # and so are others, who shall not all come again at once
                    wait_s *= random.uniform(1.0, 1.5)
                if self._on_pause is not None:
                    self._on_pause(str(again), wait_s)
                await self._sleep(wait_s)
                pause_s *= 2.0

    async def _ask(self, method: str, path: str, kind: type[M], message: Message | None = None) -> M:
        return self._read(await self._send(method, path, message), kind)

    async def _send(self, method: str, path: str, message: Message | None = None) -> HttpAnswer:
        content = None if message is None else msgspec.json.encode(message)
        headers = {"Content-Type": "application/json"}
        try:
            answer = await ask(
                self._http, method, self.url + path, max_bytes=MAX_BODY_BYTES, headers=headers, content=content
            )
        except NoAnswer as error:
            raise _Again(str(error)) from error
        if answer.status == 200:
            return answer
        is_early = answer.status == 429 and answer.retry_after_s is not None
        try:
            refusal = decode(answer.body, AuthorityRefusal)
        except ValueError as error:  # a proxy's, whatever its status
            why = f"what answers is no authority of this version: HTTP status {answer.status}"
            raise _Again(why, answer.retry_after_s, is_early=is_early) from error
        if answer.status >= 500 or answer.status in (408, 409, 429):
            raise _Again(refusal.message, answer.retry_after_s, is_early=is_early)
        kind = LoginNeeded if refusal.code == "login_needed" else RejectedError
        raise kind(f"the authority {self.url} refuses: {refusal.message}", code=RefusalCode.ACCESS, phase=PHASE)

    def _read(self, answer: HttpAnswer, kind: type[M]) -> M:
        try:
            return decode(answer.body, kind)
        except ValueError as error:
            raise _Again(f"what answers is no authority of this version: {error}") from error


class _Again(Exception):
    """No answer of an authority, or one that may change; `after_s` is when the server wants to be asked again. It
    `is_early` if others of this address asked too often.
    """

    def __init__(self, why: str, after_s: float | None = None, *, is_early: bool = False) -> None:
        self.after_s, self.is_early = after_s, is_early
        super().__init__(why)
