"""How a machine gets its token: by its key if that is enough, or else by its person's login."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from minga.core.errors import ConfigurationError, LocalError, RejectedError, RemoteError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.core.units import format_duration
from minga.identity.access.ledger import CLOCK_SKEW_S
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.login.client import PHASE, AuthorityClient, LoginNeeded
from minga.login.messages import ByAccessToken, ByCode, ByDevice, ByKey, DeviceCode, Issued, LoginOffer, Pending

MOST_POLL_S = 60.0


class LoginUser(Protocol):
    """The person at the machine, as far as a login needs them. Each method may raise `ConfigurationError`."""

    def has_secret(self) -> bool:
        """Whether a code or an access token was given beforehand."""

    def is_ready(self, way: str) -> bool:
        """Whether all that this way to log in takes was given beforehand, so that nobody is waited for, however
        late.
        """

    def name(self, provider: str) -> str:
        """The name to log in with."""

    def secret(self, what: str, url: str) -> str:
        """A secret, `what` it is in words, that will be sent to `url`."""

    def open_browser(self, device: DeviceCode) -> None:
        """Tell the person where to go."""

    def wait(self, why: str, seconds: float) -> None:
        """The authority gives no answer yet, and is asked again after a pause."""

    def welcome(self, name: str, until_s: int) -> None:
        """The login succeeded, and lasts until then (Unix seconds)."""


@dataclass(frozen=True)
class Credentials:
    """What a program logs in with at an authority: a name, and a code or an access token, as far as they are given.

    Without them the peer's key has to be enough, as it is on a machine where a person has logged in before.
    """

    login: str = ""
    code: str = field(default="", repr=False)

    def has_secret(self) -> bool:
        """See `LoginUser`."""
        return bool(self.code)

    def is_ready(self, way: str) -> bool:
        """See `LoginUser`."""
        return self.has_secret() and (way == "token" or bool(self.login))

    def name(self, provider: str) -> str:
        """See `LoginUser`."""
        if not self.login:
            raise ConfigurationError(
                f"the run is for people who log in ({provider}), and no name was given. Run `minga join LINK` with "
                "this key file once; or call minga.join with your minga.Credentials, and pass the peer that it returns "
                "in place of the link"
            )
        return self.login

    def secret(self, what: str, url: str) -> str:
        """See `LoginUser`."""
        if not self.code:
            raise ConfigurationError(f"{url} wants the {what}, which was not given; minga.Credentials takes it")
        return self.code

    def open_browser(self, device: DeviceCode) -> None:
        """See `LoginUser`."""
        raise ConfigurationError(
            f"a person has to log in at {device.url} in the browser; run `minga join LINK` once with this key file"
        )

    def wait(self, why: str, seconds: float) -> None:
        """See `LoginUser`."""

    def welcome(self, name: str, until_s: int) -> None:
        """See `LoginUser`."""


@dataclass(frozen=True)
class LogIn:
    """Gets tokens of one authority, asking `person` only where the key is not enough."""

    client: AuthorityClient
    person: LoginUser
    sleep: Callable[[float], Awaitable[None]]
    wall_time: Callable[[], float] = time.time
    """Unix seconds."""

    async def obtain(self, peer: Identity, kept: Token | None) -> Token:
        """A token for the key of `peer`; `kept` is what it showed before, and will do if the authority is down.

        Raises `RemoteError`, what `person` raises, and `LocalError` if this machine's clock is too far ahead.
        """
        try:
            try:
                token = await self._by_key(peer, is_patient=not self._lasts(kept))
            except LoginNeeded:
                token = await self._log_in(peer, await self.client.offer())
        except UnreachableError:  # of the authority, or of its provider
            if kept is None or not self._lasts(kept):
                raise
            return kept
        check_clock(token, self.wall_time())
        return token

    async def renew(self, peer: Identity) -> Token:
        """The next token for a key that had one, or whose person `is_ready`. Raises `RemoteError` and `LocalError`."""
        try:
            return await self._by_key(peer)
        except LoginNeeded:
            offer = await self.client.offer()
            if not self.person.is_ready(self._way(offer)):
                raise
            return await self._log_in(peer, offer)

    def _lasts(self, kept: Token | None) -> bool:
        return kept is not None and (kept.expires or 0) > self.wall_time()

    async def _by_key(self, peer: Identity, *, is_patient: bool = True) -> Token:
        return _issued(await self.client.token(peer, ByKey(), is_patient=is_patient))[0]

    async def _log_in(self, peer: Identity, offer: LoginOffer) -> Token:
        way = self._way(offer)
        if way == "device":
            token, issued = await self._by_device(peer)
        else:
            login: ByCode | ByAccessToken
            if way == "code":
                name = self.person.name(offer.provider)
                login = ByCode(name, self.person.secret(f"code of {name}", self.client.url))
            else:
                login = ByAccessToken(self.person.secret(f"access token of {offer.provider}", self.client.url))
            token, issued = _issued(await self.client.token(peer, login))
        self.person.welcome(issued.name, issued.login_until)
        return token

    def _way(self, offer: LoginOffer) -> str:
        """The first way that is offered; a secret given beforehand shows that the browser is not wanted."""
        ways = [way for way in offer.ways if way != "device" or not self.person.has_secret()]
        if not ways:
            raise RejectedError(
                f"the authority {self.client.url} lets people log in in the browser only; leave the secret away",
                code=RefusalCode.ACCESS,
                phase=PHASE,
            )
        return ways[0]

    async def _by_device(self, peer: Identity) -> tuple[Token, Issued]:
        device = await self.client.begin_device()
        self.person.open_browser(device)
        ends, interval_s = time.monotonic() + device.expires_s, device.interval_s
        while time.monotonic() < ends:
            await self.sleep(min(MOST_POLL_S, max(0.1, interval_s)))
            answer = await self.client.token(peer, ByDevice(device.device))
            if not isinstance(answer, Pending):
                return answer
            interval_s = answer.interval_s
        raise RejectedError("nobody logged in in the browser in time; try again", code=RefusalCode.ACCESS, phase=PHASE)


def check_clock(token: Token, now_s: float) -> None:
    """Raise `LocalError` if a token that was just signed has expired by this machine's clock (Unix seconds)."""
    if token.expires is not None and now_s > token.expires + CLOCK_SKEW_S:
        ahead = format_duration(now_s - token.expires)
        raise LocalError(
            f"this machine's clock is wrong: by it the access that the authority gives just now ended {ahead} ago. Set "
            "it, let it follow a time server, and try again"
        )


def _issued(answer: tuple[Token, Issued] | Pending) -> tuple[Token, Issued]:
    if isinstance(answer, Pending):
        raise RemoteError("the authority waits for a browser that was not asked for", phase=PHASE)
    return answer
