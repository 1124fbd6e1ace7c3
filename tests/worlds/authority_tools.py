"""What the tests of the authority share: an authority in this process, its people, a stand-in of their provider."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest

from minga.authority import codes
from minga.authority.allow_list import SETTLE_S, AllowFile
from minga.authority.issuer import Issuer
from minga.authority.providers import FileProvider, IdentityProvider
from minga.authority.roster import RosterFile
from minga.authority.service import Authority
from minga.identity.access.ledger import AccessLedger, Organisers
from minga.identity.access.orders import Grant
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link, LinkAccess
from minga.login.client import AuthorityClient

RUN = "ab" * 32
ORGANISER, INVITATION, PEER, OTHER = (Identity.from_seed(bytes([i]) * 32) for i in range(101, 105))
URL = "http://127.0.0.1:8470"
HOUR_S = 3600.0
CODES = {"alice": "aaaa-bbbb-cccc-dddd", "bob": "eeee-ffff-gggg-hhhh"}


def asynchronously(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@functools.cache
def hash_of(name: str) -> str:
    """The hash of a code, which takes a sixteenth of the usual time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "LOG2_N", 10)
        return codes.hashed(CODES[name])


def people(*names: str, more: str = "") -> str:
    """Lines of a list with these people."""
    return more + "".join(f'[people.{name}]\ncode = "{hash_of(name)}"\n' for name in names)


def invitation_link(uses: int = 100, valid_s: float = 90 * 24 * HOUR_S) -> Link:
    now = int(time.time())
    run, subject = bytes.fromhex(RUN), bytes.fromhex(INVITATION.peer_id)
    grant = Grant(run, 0, now, (), subject, uses, 1, now + int(valid_s)).signed_by(ORGANISER)
    return Link(RUN, ORGANISER.peer_id, (EntryPoint(ORGANISER.peer_id),), LinkAccess(grant, INVITATION.seed))


def ledger() -> AccessLedger:
    return AccessLedger(RUN, Organisers(frozenset({ORGANISER.peer_id}), 1), ORGANISER.peer_id)


class Clock:
    """Unix seconds that tests move."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


class Place:
    """One authority with its files in `folder`, asked without a network."""

    def __init__(
        self,
        folder: Path,
        allow: str,
        *,
        link: Link | None = None,
        provider: Callable[[AllowFile], IdentityProvider] = FileProvider,
    ) -> None:
        self.path, self.clock = folder / "allow.toml", Clock()
        self.path.write_text(allow)
        self.allowed = AllowFile(self.path, self.clock)
        self.roster = RosterFile(folder / "allow.roster.json", RUN, self.clock)
        self.issuer = Issuer(link or invitation_link(), self.allowed, self.roster, self.clock)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.authority = Authority(self.issuer, provider(self.allowed), self._tell, self.clock)
        self.pauses: list[float] = []
        self.transport: httpx2.AsyncBaseTransport = httpx2.ASGITransport(self.authority.app)

    def client(self, run_id: str = RUN) -> AuthorityClient:
        return AuthorityClient(URL, run_id, transport=self.transport, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now_s += seconds

    def write(self, allow: str) -> None:
        """Change the list, and let it settle; its size tells it from the last, whatever the disk's clock says."""
        self.path.write_text(allow + "#" * (self.path.stat().st_size + 1 - len(allow)) + "\n")
        self.allowed.current()
        self.clock.now_s += SETTLE_S

    def close(self) -> None:
        self.roster.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))


async def raw(place: Place, method: str, path: str, body: bytes = b"", **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=place.transport, base_url=URL) as client:
        return await client.request(method, path, content=body, headers=headers)


Handler = Callable[[httpx2.Request], Awaitable[httpx2.Response] | httpx2.Response]


class StandIn:
    """The API of an identity provider, as far as it is used: the same paths and answers as the Hugging Face Hub's."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {}
        self.approved: dict[str, str] = {}
        self.errors: list[str] = []
        self.status: int | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.transport = httpx2.MockTransport(self._handle)

    def add_user(self, token: str, name: str, *, kind: str = "user", orgs: tuple[str, ...] = ()) -> None:
        self.users[token] = {
            "type": kind, "id": "1", "name": name, "fullname": name.title(), "isPro": False, "avatarUrl": "/a.svg",
            "orgs": [{"type": "org", "id": "2", "name": org, "roleInOrg": "read"} for org in orgs],
            "auth": {"type": "access_token", "accessToken": {"displayName": "x", "role": "read"}},
        }  # fmt: skip

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        form = dict(httpx2.QueryParams(request.content.decode()))
        self.asked.append((request.url.path, form))
        if self.status is not None:
            return httpx2.Response(self.status, text="<html>out of order</html>")
        match request.url.path:
            case "/api/whoami-v2":
                token = request.headers.get("Authorization", "").removeprefix("Bearer ")
                user = self.users.get(token)
                invalid = httpx2.Response(401, json={"error": "Invalid username or password."})
                return invalid if user is None else httpx2.Response(200, json=user)
            case "/oauth/device":
                answer = {
                    "device_code": "device-1", "user_code": "ABCD-EFGH", "interval": 5, "expires_in": 900,
                    "verification_uri": "https://hub.test/oauth/device",
                    "verification_uri_complete": "https://hub.test/oauth/device?code=ABCD-EFGH",
                }  # fmt: skip
                return httpx2.Response(200, json=answer)
            case "/oauth/token":
                if self.errors:
                    return httpx2.Response(400, json={"error": self.errors.pop(0), "error_description": "…"})
                token = self.approved[form["device_code"]]
                return httpx2.Response(200, json={"access_token": token, "token_type": "bearer", "expires_in": 28800})
        return httpx2.Response(404)
