"""Logins by an identity provider, against a stand-in of its API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from minga.authority import roster
from minga.authority.allow_list import AllowFile
from minga.authority.providers import OAuthProvider
from minga.authority.providers import Person as Known
from minga.authority.service import BURST, OF_A_FAILURE
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.terminal.output import Output
from minga.core.errors import RejectedError, StorageError, UnreachableError
from minga.login.client import LoginNeeded
from minga.login.credentials import LogIn
from minga.login.messages import ByAccessToken, ByDevice, ByKey, DeviceCode
from tests.worlds.authority_tools import HOUR_S, OTHER, PEER, Place, StandIn, asynchronously, raw

pytestmark = pytest.mark.promise("who-may-take-part")

HUB = '[provider]\nkind = "huggingface"\nendpoint = "https://hub.test"\n'
BROWSER = 'client_id = "app-1"\n'
OAUTH = (
    '[provider]\nkind = "oauth"\nlabel = "Our Git"\nclient_id = "app-2"\nname_field = "login"\n'
    'device_url = "https://hub.test/oauth/device"\ntoken_url = "https://hub.test/oauth/token"\n'
    'user_url = "https://hub.test/api/whoami-v2"\n'
)


def place_with(folder: Path, hub: StandIn, allow: str) -> Place:
    def make(allowed: AllowFile) -> OAuthProvider:
        return OAuthProvider(allowed.current().provider, transport=hub.transport, clock=lambda: place.clock())

    place = Place(folder, allow, provider=make)
    return place


class Visitor:
    """A person with an access token, or with a browser."""

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret
        self.shown: list[DeviceCode] = []
        self.welcomed: list[str] = []

    def has_secret(self) -> bool:
        return self._secret is not None

    def is_ready(self, way: str) -> bool:
        return self.has_secret()

    def name(self, provider: str) -> str:
        raise AssertionError(provider)

    def secret(self, what: str, url: str) -> str:
        assert (what, url) == ("access token of Hugging Face", "http://127.0.0.1:8470")
        return str(self._secret)

    def open_browser(self, device: DeviceCode) -> None:
        self.shown.append(device)

    def wait(self, why: str, seconds: float) -> None:
        raise AssertionError(why, seconds)

    def welcome(self, name: str, until_s: int) -> None:
        assert until_s > 0
        self.welcomed.append(name)


async def log_in(place: Place, person: Visitor, peer: Any = PEER) -> Any:
    client = place.client()
    try:
        return await LogIn(client, person, place.sleep).obtain(peer, None)
    finally:
        await client.close()


@asynchronously
async def test_a_hub_token_of_somebody_on_the_list(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_alice", "alice")
    place, person = place_with(tmp_path, hub, HUB + "[people.alice]\npeers = 1\n"), Visitor("hf_alice")
    token = await log_in(place, person)
    assert (token.login.name, person.welcomed) == ("alice", ["alice"])
    assert (await log_in(place, Visitor(), PEER)).login.name == "alice", "the second time the key is enough"
    assert [path for path, _ in hub.asked] == ["/api/whoami-v2"]
    with pytest.raises(RejectedError, match="1 peer at a time"):
        await log_in(place, person, OTHER)
    assert "hf_alice" not in repr(place.told) + (tmp_path / "allow.roster.json").read_text()


@asynchronously
async def test_members_of_the_organisation_are_admitted_until_they_are_listed_otherwise(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_bob", "bob", orgs=("friends", "minga-run"))
    hub.add_user("hf_eve", "eve", orgs=("elsewhere",))
    allow = HUB + 'organisation = "minga-run"\n'
    place = place_with(tmp_path, hub, allow)
    assert (await log_in(place, Visitor("hf_bob"))).login.name == "bob"
    with pytest.raises(RejectedError, match="eve is not on the list"):
        await log_in(place, Visitor("hf_eve"), OTHER)
    place.write(allow + "[people.bob]\npeers = 0\n")
    with pytest.raises(RejectedError, match="bob is not on the list"):
        await place.client().token(PEER, ByKey())


@pytest.mark.parametrize(
    ("secret", "cause"),
    [
        ("hf_wrong", "does not accept the access token"),
        ("hf_org", "belongs to an 'org', not to a person"),
        ("hf_odd", "gives a name that cannot be used"),
        ("hf\u00e9", "no access token"),
        ("hf_x\r\nX-Evil: 1", "no access token"),
    ],
)
@asynchronously
async def test_hub_tokens_that_are_none(tmp_path: Path, secret: str, cause: str) -> None:
    hub = StandIn()
    hub.add_user("hf_org", "minga-run", kind="org")
    hub.add_user("hf_odd", "a b\n")
    place = place_with(tmp_path, hub, HUB + "[people.alice]\n")
    with pytest.raises(RejectedError, match=cause):
        await log_in(place, Visitor(secret))
    assert place.pauses == []


@asynchronously
async def test_the_browser_is_waited_for_at_the_providers_pace(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_oauth_alice", "alice")
    hub.approved["device-1"] = "hf_oauth_alice"
    hub.errors = ["authorization_pending", "slow_down", "authorization_pending"]
    place, person = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n"), Visitor()
    token = await log_in(place, person)
    assert token.login.name == "alice"
    assert [(shown.url, shown.code) for shown in person.shown] == [("https://hub.test/oauth/device", "ABCD-EFGH")]
    assert place.pauses == [5.0, 5.0, 10.0, 10.0]
    begun, polled = hub.asked[0], hub.asked[1]
    assert begun == ("/oauth/device", {"client_id": "app-1", "scope": "openid profile"})
    assert polled == (
        "/oauth/token",
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "device_code": "device-1",
            "client_id": "app-1",
        },
    )
    assert "device-1" not in repr(person.shown), "the provider's device code stays with the authority"


@pytest.mark.parametrize(
    ("error", "cause"),
    [("access_denied", "declined in the browser"), ("expired_token", "took too long"), ("odd", "refused the login")],
)
@asynchronously
async def test_a_browser_that_says_no(tmp_path: Path, error: str, cause: str) -> None:
    hub = StandIn()
    hub.errors = [error]
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n")
    with pytest.raises(RejectedError, match=cause):
        await log_in(place, Visitor())


@asynchronously
async def test_device_logins_end_and_cannot_be_invented(tmp_path: Path) -> None:
    hub = StandIn()
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n")
    with pytest.raises(RejectedError, match="never begun"):
        await place.client().token(PEER, ByDevice("guess"))
    hub.errors = ["authorization_pending"] * 1000
    with pytest.raises(RejectedError, match=r"in time|is over"):
        await log_in(place, Visitor())


@asynchronously
async def test_one_home_line_ends_no_login_of_others_in_the_browser(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_c", "carol")
    hub.approved["device-1"] = "hf_c"
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.carol]\n")
    device, begun = await place.client().begin_device(), 0
    honest = place.transport
    for network in range(100):
        place.transport = httpx2.ASGITransport(place.authority.app, client=(f"2001:db8:0:{network:x}::1", 1))
        while (await raw(place, "POST", "/v1/device")).status_code == 200:
            begun += 1
    assert begun == BURST / OF_A_FAILURE
    place.transport = honest
    assert isinstance(await place.client().token(PEER, ByDevice(device.device)), tuple)


@asynchronously
async def test_nobody_asks_the_provider_faster_than_it_wants(tmp_path: Path) -> None:
    hub = StandIn()
    hub.errors = ["authorization_pending"] * 3
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n")
    begun = await place.client().begin_device()
    for _ in range(5):
        await place.client().token(PEER, ByDevice(begun.device))
    assert [path for path, _ in hub.asked] == ["/oauth/device", "/oauth/token"]


@asynchronously
async def test_another_provider(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("oauth-1", "carol")
    hub.users["oauth-1"]["login"] = "carol-login"
    hub.approved["device-1"] = "oauth-1"
    place = place_with(tmp_path, hub, OAUTH + "[people.carol-login]\n")
    assert (await log_in(place, Visitor())).login.name == "carol-login"
    with pytest.raises(RejectedError, match="it offers: device"):
        await place.client().token(OTHER, ByAccessToken("oauth-1"))
    with pytest.raises(RejectedError, match="in the browser only"):
        await log_in(place, Visitor("oauth-1"), OTHER)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", HUB),
        (HUB, HUB.replace("hub.test", "hub2.test")),
        (OAUTH, OAUTH.replace("hub.test", "git.test")),
        (OAUTH, OAUTH.replace('"login"', '"email"')),
    ],
)
@asynchronously
async def test_a_name_at_one_provider_is_not_the_same_at_another(tmp_path: Path, before: str, after: str) -> None:
    for allow in (before, after):
        place = place_with(tmp_path, StandIn(), allow + "[people.alice]\n")
        with pytest.raises(LoginNeeded):
            await place.client().token(PEER, ByKey())
        place.issuer.issue(PEER.peer_id, Known("alice"))
        await place.client().token(PEER, ByKey())
        place.close()


@asynchronously
async def test_the_organisation_may_change_at_any_time(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_bob", "bob", orgs=("friends",))
    place = place_with(tmp_path, hub, HUB + 'organisation = "minga-run"\n')
    place.write(HUB + 'organisation = "friends"\n')
    assert (await log_in(place, Visitor("hf_bob"))).login.name == "bob"
    place.write(HUB + 'organisation = "elsewhere"\n')
    with pytest.raises(RejectedError, match="bob is not on the list"):
        await place.client().token(PEER, ByKey())


def failing(hub: StandIn, how: str) -> Callable[..., httpx2.Response]:
    def handle(_: httpx2.Request) -> httpx2.Response:
        if how == "down":
            raise httpx2.ConnectError("refused")
        if how == "endless":
            return httpx2.Response(200, content=b" " * (2 << 20))
        return httpx2.Response(200, text="<html>maintenance</html>")

    hub.transport = httpx2.MockTransport(handle)
    return handle


@pytest.mark.parametrize("how", ["500", "429", "302", "down", "garbage", "endless"])
@asynchronously
async def test_a_provider_that_is_down_is_named_and_asked_again(tmp_path: Path, how: str) -> None:
    hub = StandIn()
    if how.isdecimal():
        hub.status = int(how)
    else:
        failing(hub, how)
    place = place_with(tmp_path, hub, HUB + "[people.alice]\n")
    with pytest.raises(UnreachableError, match="Hugging Face"):
        await log_in(place, Visitor("hf_alice"))
    assert len(place.pauses) == 5
    assert "hf_alice" not in repr(place.told)


@asynchronously
async def test_a_kept_token_will_do_where_a_login_is_needed_and_the_provider_is_down(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_alice", "alice")
    place = place_with(tmp_path, hub, 'login = "1h"\n' + HUB + "[people.alice]\n")
    kept = await log_in(place, Visitor("hf_alice"))
    place.clock.now_s += 2 * HOUR_S
    hub.status = 503
    person = PersonAtTerminal(None, tmp_path / "secret", Output(json_output=False))
    (tmp_path / "secret").write_text("hf_alice\n")
    assert await LogIn(place.client(), person, place.sleep, place.clock).obtain(PEER, kept) == kept


@asynchronously
async def test_who_gave_an_access_token_beforehand_is_logged_in_again_without_a_name(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_alice", "alice")
    place = place_with(tmp_path, hub, 'login = "1h"\n' + HUB + BROWSER + "[people.alice]\n")
    (tmp_path / "secret").write_text("hf_alice")
    person = PersonAtTerminal(None, tmp_path / "secret", Output(json_output=False))
    logged_in = LogIn(place.client(), person, place.sleep, place.clock)
    before = await logged_in.obtain(PEER, None)
    place.clock.now_s += 2 * HOUR_S
    assert ((await logged_in.renew(PEER)).expires or 0) > (before.expires or 0)
    place.clock.now_s += 2 * HOUR_S
    nothing_given = PersonAtTerminal("alice", None, Output(json_output=False))
    with pytest.raises(LoginNeeded):
        await LogIn(place.client(), nothing_given, place.sleep).renew(PEER)


@asynchronously
async def test_a_login_outlives_a_hiccup_of_the_provider(tmp_path: Path) -> None:
    hub = StandIn()
    hub.add_user("hf_oauth_alice", "alice")
    hub.approved["device-1"] = "hf_oauth_alice"
    works, hiccups = hub.transport, [True]

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/api/whoami-v2" and hiccups:
            hiccups.pop()
            return httpx2.Response(503)
        return works.handle_request(request)

    hub.transport = httpx2.MockTransport(handle)
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n")
    assert (await log_in(place, Visitor())).login.name == "alice"


@asynchronously
async def test_a_login_in_the_browser_outlives_a_disk_that_refuses_and_an_answer_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = StandIn()
    hub.add_user("hf_oauth_alice", "alice")
    hub.approved["device-1"] = "hf_oauth_alice"
    place = place_with(tmp_path, hub, HUB + BROWSER + "[people.alice]\n")
    works, stores, troubles = place.transport, roster.store, ["disk", "way"]

    def store(path: Path, body: bytes) -> None:
        if "disk" in troubles:
            troubles.remove("disk")
            raise StorageError("full")
        stores(path, body)

    async def lossy(request: httpx2.Request) -> httpx2.Response:
        answer = await works.handle_async_request(request)
        if b"issued" in await answer.aread() and troubles:
            troubles.remove("way")
            raise httpx2.ReadError("gone")
        return answer

    monkeypatch.setattr(roster, "store", store)
    place.transport = httpx2.MockTransport(lossy)
    assert (await log_in(place, Visitor())).login.name == "alice"
    assert troubles == []
    assert [path for path, _ in hub.asked].count("/api/whoami-v2") == 1, "its access token was forgotten"
