"""Identity providers: they identify the people that log in, by codes or by OAuth 2.0.

Logins in the browser go by the device authorization grant (RFC 8628). The authority itself asks the provider for a
device code, in the name of its own OAuth application, and shows the person only where to go. So the resulting access
token never reaches the person's machine. It gives no more than the application asked for (the name), and is forgotten
here as soon as the name is known.

An access token that a person hands over is worth more than that, and a server that got it for another purpose could use
it here. Only Hugging Face logins take one, for machines without a browser.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import httpx2
import msgspec

from minga.authority import codes
from minga.authority.allow_list import AllowFile, Provider
from minga.authority.refusals import Refused
from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.urls import is_safe_url
from minga.identity.access.token import LOGIN_NAME
from minga.login.http import HttpAnswer, NoAnswer, ask, make_client
from minga.login.messages import ByAccessToken, ByCode, ByDevice, ByKey, DeviceCode, LoginWay, Pending, Way

WRONG_CODE = "the name or the code is wrong"

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
MAX_ANSWER_BYTES = 1 << 20
MAX_DEVICES = 2000
MAX_DEVICE_S = 1800.0
DEFAULT_INTERVAL_S, SLOWER_S = 5.0, 5.0
_NAME = re.compile(LOGIN_NAME)

T = TypeVar("T")
Words = Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]


@dataclass(frozen=True)
class Person:
    """A person that a provider identified, with the organisations to which they belong, or the mark of their code."""

    name: str
    organisations: frozenset[str] = frozenset()
    code_mark: str | None = None


class IdentityProvider(Protocol):
    """Identifies a person; the list decides whether they may take part."""

    label: str
    """Its name for people."""

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to log in, the best first."""

    async def identify(self, login: LoginWay) -> Person | Pending:
        """The person, or `Pending` while the browser is waited for. Raises `Refused`."""

    async def begin_device(self) -> DeviceCode:
        """Begin a login in the browser. Raises `Refused`."""

    async def close(self) -> None:
        """Let its connections go."""


class FileProvider:
    """People with secret codes, whose hashes stand in the allow-list; needs no other service."""

    label = "codes from the organiser"
    ways: tuple[Way, ...] = ("code",)

    def __init__(self, allowed: AllowFile) -> None:
        self._allowed = allowed
        self._at_a_time = asyncio.Semaphore(2)
        self._nobodys = codes.hashed(codes.new_code())

    async def identify(self, login: LoginWay) -> Person:
        """See `IdentityProvider`. An unknown name takes as long as a wrong code."""
        if not isinstance(login, ByCode):
            raise refused_way(login, self.ways)
        person = self._allowed.current().people.get(login.name)
        stored = self._nobodys if person is None or person.code is None else person.code
        async with self._at_a_time:
            fits = await asyncio.to_thread(codes.fits, login.code, stored)
        if not fits or person is None:
            raise Refused("login", WRONG_CODE)
        return Person(login.name, code_mark=person.code_mark)

    async def begin_device(self) -> DeviceCode:
        """See `IdentityProvider`."""
        raise Refused("login", "here people log in with codes, not in the browser")

    async def close(self) -> None:
        """See `IdentityProvider`."""


def refused_way(login: LoginWay, ways: tuple[Way, ...]) -> Exception:
    """The refusal of a way to log in that this authority does not offer."""
    tried = "key" if isinstance(login, ByKey) else type(login).__struct_config__.tag
    return Refused("login", f"this authority does not know the way {tried!r}; it offers: {', '.join(ways)}")


class DeviceAnswer(msgspec.Struct, frozen=True):
    """The device authorization response (RFC 8628, section 3.2); other fields are ignored."""

    device_code: Words
    user_code: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    verification_uri: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    expires_in: Annotated[float, msgspec.Meta(ge=1.0)]
    interval: Annotated[float, msgspec.Meta(ge=0.0, le=300.0)] = DEFAULT_INTERVAL_S


class GrantAnswer(msgspec.Struct, frozen=True):
    """The token response, or its error (RFC 8628, section 3.5)."""

    access_token: Words | None = None
    error: Annotated[str, msgspec.Meta(max_length=100)] | None = None


class HubOrganisation(msgspec.Struct, frozen=True):
    """One organisation in the Hub's answer."""

    name: str


class WhoAmI(msgspec.Struct, frozen=True):
    """The Hub's answer to `GET /api/whoami-v2`."""

    type: str
    name: str
    orgs: tuple[HubOrganisation, ...] = ()


@dataclass
class DeviceLogin:
    """A login in the browser; times by the provider's clock in seconds.

    It stays once the `person` is known, in place of the access token: what the authority answers then may be lost.
    """

    code: str
    expires_s: float
    interval_s: float
    next_s: float
    access_token: str | None = None
    person: Person | None = None


class OAuthProvider:
    """People who log in at an OAuth provider. `clock` is in seconds, from any beginning."""

    def __init__(
        self,
        settings: Provider,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._is_hub = settings.kind == "huggingface"
        self.label = settings.label or ("Hugging Face" if self._is_hub else "the organiser's login")
        self._http = make_client(transport)
        self._devices: dict[str, DeviceLogin] = {}

    @property
    def ways(self) -> tuple[Way, ...]:
        """See `IdentityProvider`."""
        browser: tuple[Way, ...] = ("device",) if self._settings.client_id is not None else ()
        return (*browser, "token") if self._is_hub else browser

    async def close(self) -> None:
        """See `IdentityProvider`."""
        await self._http.aclose()

    async def identify(self, login: LoginWay) -> Person | Pending:
        """See `IdentityProvider`."""
        if isinstance(login, ByAccessToken) and "token" in self.ways:
            return await self._whose(login.token)
        if isinstance(login, ByDevice) and "device" in self.ways:
            return await self._poll(login.device)
        raise refused_way(login, self.ways)

    # ---- in the browser

    async def begin_device(self) -> DeviceCode:
        """See `IdentityProvider`."""
        if "device" not in self.ways:
            raise Refused("login", "here people log in with an access token, not in the browser")
        url = self._settings.device_url or f"{self._settings.endpoint}/oauth/device"
        form = {"client_id": str(self._settings.client_id), "scope": self._settings.scope}
        answer = await self._ask("POST", url, form=form)
        if answer.status != 200:
            raise Refused("provider", f"{self.label} begins no login (HTTP status {answer.status})")
        begun = self._read(answer, DeviceAnswer)
        if not is_safe_url(begun.verification_uri):
            raise Refused("provider", f"{self.label} names no https:// address to log in at")
        while len(self._devices) >= MAX_DEVICES:
            del self._devices[next(iter(self._devices))]
        name, now_s = secrets.token_urlsafe(24), self._clock()
        expires_s = min(begun.expires_in, MAX_DEVICE_S)
        self._devices[name] = DeviceLogin(begun.device_code, now_s + expires_s, begun.interval, now_s)
        return DeviceCode(name, begun.verification_uri, begun.user_code, begun.interval, expires_s)

    async def _poll(self, name: str) -> Person | Pending:
        device = self._devices.get(name)
        if device is None or self._clock() > device.expires_s:
            self._devices.pop(name, None)
            raise Refused("login", "this login is over, or was never begun; begin again")
        if device.person is None:
            found = device.access_token or await self._access_token(name, device)
            if isinstance(found, Pending):
                return found
            device.person = await self._whose(found)
            device.access_token = None
        return device.person

    async def _access_token(self, name: str, device: DeviceLogin) -> str | Pending:
        now_s = self._clock()
        if now_s < device.next_s:
            return Pending(device.next_s - now_s)
        device.next_s = now_s + device.interval_s
        url = self._settings.token_url or f"{self._settings.endpoint}/oauth/token"
        form = {"grant_type": GRANT_TYPE, "device_code": device.code, "client_id": str(self._settings.client_id)}
        answer = await self._ask("POST", url, form=form)
        granted = self._read(answer, GrantAnswer)
        if answer.status == 200 and granted.access_token is not None:
            device.access_token = granted.access_token
            return granted.access_token
        if granted.error == "slow_down":
            device.interval_s += SLOWER_S
            device.next_s = now_s + device.interval_s
        elif granted.error != "authorization_pending":
            self._devices.pop(name, None)
            why = {"access_denied": "the login was declined in the browser", "expired_token": "the login took too long"}
            raise Refused("login", why.get(granted.error or "", f"{self.label} refused the login"))
        return Pending(device.interval_s)

    # ---- whose token it is

    async def _whose(self, access_token: str) -> Person:
        url = f"{self._settings.endpoint}/api/whoami-v2" if self._is_hub else str(self._settings.user_url)
        if not access_token.isascii() or not access_token.isprintable():
            raise Refused("login", f"this is no access token of {self.label}")
        answer = await self._ask("GET", url, headers={"Authorization": f"Bearer {access_token}"})
        if answer.status in (401, 403):
            raise Refused(
                "login", f"{self.label} does not accept the access token; it is wrong, expired or lacks rights"
            )
        if answer.status != 200:
            raise Refused(
                "provider", f"{self.label} does not say who it is (HTTP status {answer.status}); try again later"
            )
        if not self._is_hub:
            return Person(self._checked(self._read(answer, dict[str, Any]).get(self._settings.name_field)))
        who = self._read(answer, WhoAmI)
        if who.type != "user":
            raise Refused("login", f"this access token belongs to an {who.type[:20]!r}, not to a person")
        return Person(self._checked(who.name), frozenset(organisation.name for organisation in who.orgs))

    def _checked(self, name: object) -> str:
        if not isinstance(name, str) or not _NAME.match(name):
            raise Refused("login", f"{self.label} gives a name that cannot be used here")
        return name

    async def _ask(self, method: str, url: str, **what: Any) -> HttpAnswer:
        headers = {"Accept": "application/json", **what.pop("headers", {})}
        try:
            answer = await ask(self._http, method, url, max_bytes=MAX_ANSWER_BYTES, headers=headers, **what)
        except NoAnswer as error:
            raise Refused("provider", f"{self.label} does not answer; try again later") from error
        if answer.status == 429:
            raise Refused("busy", f"{self.label} is asked too often; try again in a minute")
        if answer.status >= 500:
            raise Refused("provider", f"{self.label} is out of order (HTTP status {answer.status}); try again later")
        return answer

    def _read(self, answer: HttpAnswer, kind: type[T]) -> T:
        try:
            return decode_json(answer.body, kind)
        except DECODING_ERRORS as error:
            raise Refused("provider", f"{self.label} answers something else than expected") from error


def make_provider(allowed: AllowFile) -> IdentityProvider:
    """The provider that the list names; another one needs another authority."""
    settings = allowed.current().provider
    return FileProvider(allowed) if settings.kind == "file" else OAuthProvider(settings)
