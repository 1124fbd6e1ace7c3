"""The authority: who gets a token, who does not, and what it tells them. Without a network."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import datetime as dt
import json
import logging
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from minga.access.access_files import AccessFiles
from minga.authority import service
from minga.authority.allow_list import SETTLE_S, AllowFile, AllowList
from minga.authority.codes import HASH_PATTERN, fits, hashed, new_code
from minga.authority.issuer import Issuer
from minga.authority.refusals import Refused
from minga.authority.roster import IssuedToken, RosterFile
from minga.authority.service import OF_A_FAILURE, RateLimit
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.terminal.output import Output
from minga.core.errors import (
    ConfigurationError,
    LocalError,
    ProtocolError,
    RejectedError,
    StorageError,
    UnreachableError,
)
from minga.core.refusal_code import RefusalCode
from minga.identity.access.ledger import CLOCK_SKEW_S, NoAccessError
from minga.identity.access.orders import Transfer
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.login.client import ATTEMPTS, AuthorityClient, LoginNeeded
from minga.login.credentials import Credentials, LogIn
from minga.login.messages import ByAccessToken, ByCode, ByKey, LoginOffer, Message, SignedRequest, TokenRequest, decode
from minga.training.own_access import RunAccess, _completed
from tests.identity.access.test_members import invitation, members_spec
from tests.worlds.authority_tools import (
    CODES,
    HOUR_S,
    INVITATION,
    ORGANISER,
    OTHER,
    PEER,
    RUN,
    Place,
    asynchronously,
    hash_of,
    invitation_link,
    ledger,
    people,
    raw,
)

pytestmark = pytest.mark.promise("who-may-take-part")

ALICE = ByCode("alice", CODES["alice"])


def peers(count: int) -> list[Identity]:
    return [Identity.from_seed(bytes([i]) * 32) for i in range(1, count + 1)]


def seats(folder: Path) -> dict[str, Any]:
    """The peers in the roster of a `Place`."""
    found: dict[str, Any] = json.loads((folder / "allow.roster.json").read_text())["seats"]
    return found


async def token_of(place: Place, peer: Identity, login: Any = ALICE) -> Token:
    client = place.client()
    try:
        answer = await client.token(peer, login)
    finally:
        await client.close()
    assert isinstance(answer, tuple)
    return answer[0]


async def refusal(place: Place, peer: Identity, login: Any = ALICE) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        await token_of(place, peer, login)
    assert caught.value.code == RefusalCode.ACCESS
    assert place.pauses == [], "a no is not asked for again"
    return caught.value


# ---- who gets what


@asynchronously
async def test_who_logs_in_gets_a_token_that_members_accept(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    token = await token_of(place, PEER)
    access = ledger().check(token, PEER.peer_id, place.clock.now_s)
    assert (access.name, access.invitation) == ("alice", INVITATION.peer_id)
    assert access.expires == pytest.approx(place.clock.now_s + 6 * HOUR_S, abs=1)
    with pytest.raises(NoAccessError, match="another peer"):
        ledger().check(token, OTHER.peer_id, place.clock.now_s)
    with pytest.raises(NoAccessError, match="log in again"):
        ledger().check(token, PEER.peer_id, place.clock.now_s + 6 * HOUR_S + CLOCK_SKEW_S + 1)
    for change in ({"name": "bob"}, {"expires": token.login.expires + 60}):  # type: ignore[union-attr]
        doctored = msgspec.structs.replace(token, login=msgspec.structs.replace(token.login, **change))
        with pytest.raises(NoAccessError, match="another peer"):
            ledger().check(doctored, PEER.peer_id, place.clock.now_s)


@pytest.mark.parametrize(
    ("login", "cause"),
    [
        (ByCode("alice", "aaaa-bbbb-cccc-dddx"), "the name or the code is wrong"),
        (ByCode("nobody", CODES["alice"]), "the name or the code is wrong"),
        (ByCode("codeless", CODES["alice"]), "the name or the code is wrong"),
        (ByAccessToken("hf_x"), "does not know the way 'token'; it offers: code"),
        (ByKey(), "this key has no access yet"),
    ],
)
@asynchronously
async def test_a_wrong_login_is_refused_in_words(tmp_path: Path, login: Any, cause: str) -> None:
    place = Place(tmp_path, people("alice") + "[people.codeless]\n")
    assert cause in str(await refusal(place, PEER, login))
    assert place.roster.issued(PEER.peer_id) is None


@pytest.mark.parametrize(
    ("until", "wanted"),
    [("2027-01-31", "2027-02-01T00:00+00:00"), ("2027-01-31T12:00:00", "2027-01-31T12:00+00:00")],
    ids=["to the end of a day", "without a zone"],
)
def test_an_end_is_in_utc(until: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(f"[people.alice]\nuntil = {until}\n")
    found = AllowList.read(tmp_path / "list.toml").people["alice"].until_s
    assert found == dt.datetime.fromisoformat(wanted).timestamp()


@asynchronously
async def test_whose_time_is_over_is_refused_and_nobody_gets_more_than_their_time(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    place.write(people("alice") + "until = 2020-01-31\n")
    assert "not on the list" in str(await refusal(place, PEER))
    place.write(people("alice") + "until = 2100-01-31T12:00:00Z\n")
    place.clock.now_s = AllowList.read(place.path).people["alice"].until_s - 600.0  # type: ignore[operator]
    assert "invitation has ended" in str(await refusal(place, PEER))


@asynchronously
async def test_no_token_outlasts_the_invitation(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"), link=invitation_link(valid_s=600.0))
    assert (await token_of(place, PEER)).expires == place.issuer.expires


@asynchronously
async def test_a_person_has_as_many_peers_at_a_time_as_the_list_says(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 2\n" + people("alice", "bob"))
    first, second, third = peers(3)
    for peer in (first, second, first):
        await token_of(place, peer)
    why = str(await refusal(place, third))
    assert "alice may have 2 peers at a time" in why
    await token_of(place, third, ByCode("bob", CODES["bob"]))
    place.clock.now_s += 6 * HOUR_S + CLOCK_SKEW_S + 1
    await token_of(place, OTHER)


@asynchronously
async def test_of_a_person_who_may_have_fewer_the_first_peers_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 3\n" + people("alice", "bob"))
    first, second, third, fourth = peers(4)
    for peer in (first, second, third):
        await token_of(place, peer)
    await token_of(place, fourth, ByCode("bob", CODES["bob"]))
    place.write("peers = 2\n" + people("alice", "bob"))
    for peer in (first, second):
        await token_of(place, peer, ByKey())
    for peer, login in ((third, ByKey()), (fourth, ALICE), (OTHER, ALICE)):
        assert "alice may have 2 peers" in str(await refusal(place, peer, login))


def test_the_peers_of_another_person_of_that_name_take_no_place(tmp_path: Path) -> None:
    """The authority was given another provider, and kept its roster."""
    roster = RosterFile(tmp_path / "roster.json", RUN, lambda: 0.0)
    first, second, third = (peer.peer_id for peer in peers(3))
    here, there = (IssuedToken("alice", source, INVITATION.peer_id, 0.0, HOUR_S) for source in ("file", "oauth there"))
    roster.take(first, here, most_peers=1, uses=9)
    roster.take(second, there, most_peers=1, uses=9)
    with pytest.raises(Refused, match="alice may have 1 peer at a time"):
        roster.take(third, there, most_peers=1, uses=9)
    roster.close()


@asynchronously
async def test_an_invitation_is_used_up_in_time(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 9\n" + people("alice"), link=invitation_link(uses=2))
    first, second, third = peers(3)
    for peer in (first, second, first):
        await token_of(place, peer)
    assert "used up" in str(await refusal(place, third))
    assert place.told[-1][1]["code"] == "invitation", "which the operator is told"


@asynchronously
async def test_of_two_who_want_the_last_place_one_gets_it(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 1\n" + people("alice"))
    answers = await asyncio.gather(*(token_of(place, peer) for peer in peers(2)), return_exceptions=True)
    assert sorted(type(answer) for answer in answers if isinstance(answer, Exception)) == [RejectedError]
    assert len(seats(tmp_path)) == 1


# ---- over time


@asynchronously
async def test_renewal_needs_the_key_only_until_the_login_is_too_old(tmp_path: Path) -> None:
    place = Place(tmp_path, 'login = "7d"\n' + people("alice"))
    before = await token_of(place, PEER)
    place.clock.now_s += 4 * HOUR_S
    after = await token_of(place, PEER, ByKey())
    assert (after.expires or 0) == pytest.approx((before.expires or 0) + 4 * HOUR_S, abs=1)
    assert "log in" in str(await refusal(place, OTHER, ByKey()))
    place.clock.now_s += 7 * 24 * HOUR_S
    with pytest.raises(LoginNeeded, match="last login of alice was too long ago"):
        await token_of(place, PEER, ByKey())
    await token_of(place, PEER)


@pytest.mark.parametrize("code", [f'code = "{hashed("new")}"\n', ""])
@asynchronously
async def test_who_logged_in_with_a_code_that_was_replaced_has_to_log_in_again(tmp_path: Path, code: str) -> None:
    place = Place(tmp_path, people("alice"))
    await token_of(place, PEER)
    await token_of(place, PEER, ByKey())
    place.write(f"peers = 3\n[people.alice]\n{code}")
    with pytest.raises(LoginNeeded, match="another code"):
        await token_of(place, PEER, ByKey())


@asynchronously
async def test_who_stole_a_code_keeps_no_place_from_its_owner_once_that_is_replaced(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 2\n" + people("alice"))
    first, second, third, fourth, fifth = peers(5)
    for thief in (first, second):
        await token_of(place, thief)
    place.write(f'peers = 2\n[people.alice]\ncode = "{hash_of("bob")}"\n')
    new = ByCode("alice", CODES["bob"])
    for peer in (third, fourth):
        await token_of(place, peer, new)
    assert "alice may have 2 peers" in str(await refusal(place, fifth, new))


@asynchronously
async def test_another_provider_needs_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path, people("alice", "bob"))
    await token_of(place, PEER)
    place.write('[provider]\nkind = "huggingface"\n[people.alice]\n')
    await token_of(place, OTHER, ByCode("bob", CODES["bob"]))
    assert {seat["provider"] for seat in seats(tmp_path).values()} == {"file"}
    await token_of(place, PEER, ByKey())
    assert [record.getMessage().endswith("restart it") for record in caplog.records] == [True]


@asynchronously
async def test_the_count_survives_a_restart(tmp_path: Path) -> None:
    place = Place(tmp_path, "peers = 1\n" + people("alice"))
    await token_of(place, PEER)
    with pytest.raises(ConfigurationError, match="another authority uses"):
        Place(tmp_path, people("alice"))
    place.close()
    again = Place(tmp_path, "peers = 1\n" + people("alice"))
    assert "1 peer at a time" in str(await refusal(again, OTHER))
    await token_of(again, PEER, ByKey())
    assert seats(tmp_path)[PEER.peer_id]["name"] == "alice"


@asynchronously
async def test_no_token_leaves_that_the_disk_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, people("alice"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minga.core.files.write_atomically", full)
    with pytest.raises(UnreachableError, match="the authority's disk refused"):
        await token_of(place, PEER)
    assert place.roster.issued(PEER.peer_id) is None


@asynchronously
async def test_who_is_taken_off_the_list_gets_nothing_more(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice", "bob"))
    await token_of(place, PEER)
    place.write(people("bob"))
    assert "alice is not on the list" in str(await refusal(place, PEER, ByKey()))
    assert "wrong" in str(await refusal(place, PEER))


@asynchronously
async def test_a_list_that_became_wrong_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path, people("alice"))
    with caplog.at_level(logging.WARNING):
        place.write("peers = -1\n")
        await token_of(place, PEER)
    assert "the list stays as it was" in caplog.text


@asynchronously
async def test_a_list_that_is_saved_in_place_takes_nobodys_access_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path, people("alice", "bob"))
    await token_of(place, PEER)
    await token_of(place, OTHER, ByCode("bob", CODES["bob"]))
    for so_far in ("", people("alice")):
        place.path.write_text(so_far)
        await token_of(place, OTHER, ByKey())
    place.clock.now_s += SETTLE_S
    assert "bob is not on the list" in str(await refusal(place, OTHER, ByKey()))
    place.write("")  # as a full disk leaves it
    await token_of(place, PEER, ByKey())
    assert "the list stays as it was" in caplog.text
    place.write(people("alice", more="peers = 0\n"))
    assert "alice is not on the list" in str(await refusal(place, PEER, ByKey()))


@asynchronously
async def test_an_authority_that_begins_amid_a_saving_of_its_list_takes_nobodys_access(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice", "bob"))
    await token_of(place, PEER)
    await token_of(place, OTHER, ByCode("bob", CODES["bob"]))
    place.path.write_text(people("alice"))  # so far
    allowed = AllowFile(place.path, place.clock)
    begun = Issuer(invitation_link(), allowed, place.roster, place.clock)
    with pytest.raises(Refused) as refused:
        begun.renew(OTHER.peer_id)
    assert refused.value.code == "busy", "who renews asks again"
    place.clock.now_s += SETTLE_S / 2
    place.path.write_text(people("alice", "bob"))
    allowed.current()
    place.clock.now_s += SETTLE_S / 2
    allowed.current()
    assert not allowed.is_whole
    place.clock.now_s += SETTLE_S / 2
    begun.renew(OTHER.peer_id)
    place.write(people("alice"))
    allowed.current()
    place.clock.now_s += SETTLE_S
    with pytest.raises(Refused) as refused:
        begun.renew(OTHER.peer_id)
    assert refused.value.code == "not_allowed"


# ---- requests that are none


async def signed(place: Place, **changes: Any) -> bytes:
    offer = decode((await raw(place, "GET", "/v1/offer")).content, LoginOffer)
    fields = {"run": offer.run, "peer": bytes.fromhex(PEER.peer_id), "nonce": offer.nonce, "login": ALICE, **changes}
    return msgspec.json.encode(SignedRequest.sign(TokenRequest(**fields), PEER))


@asynchronously
async def test_a_recorded_request_is_worth_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    body = await signed(place)
    assert (await raw(place, "POST", "/v1/token", body)).status_code == 200
    again = await raw(place, "POST", "/v1/token", body)
    assert (again.status_code, again.json()["code"]) == (409, "nonce")
    late = await signed(place)
    place.clock.now_s += 61.0
    assert (await raw(place, "POST", "/v1/token", late)).json()["code"] == "nonce"
    invented = await signed(place, nonce=bytes(16))
    assert (await raw(place, "POST", "/v1/token", invented)).json()["code"] == "nonce"


@asynchronously
async def test_a_request_for_another_key_or_run_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    other = await raw(place, "POST", "/v1/token", await signed(place, peer=bytes.fromhex(OTHER.peer_id)))
    assert (other.status_code, "signature" in other.json()["message"]) == (400, True)
    run = await raw(place, "POST", "/v1/token", await signed(place, run=bytes(32)))
    assert (run.status_code, "another run" in run.json()["message"]) == (400, True)
    with pytest.raises(RejectedError, match="for another run"):
        await place.client("cd" * 32).token(PEER, ALICE)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b"[" * 5000, 400),
        (b"\xff\xfe", 400),
        (b'{"request":"!","signature":"!"}', 400),
        (b'{"request":"e30=","signature":"' + b"A" * 86 + b'=="}', 400),
        (b" " * 8193, 413),
        (b"x" * 1_000_000, 413),
    ],
)
@asynchronously
async def test_malformed_and_oversized_bodies_are_refused(tmp_path: Path, body: bytes, status: int) -> None:
    place = Place(tmp_path, people("alice"))
    answer = await raw(place, "POST", "/v1/token", body)
    assert answer.status_code == status
    assert len(answer.content) < 600
    await token_of(place, PEER)


@asynchronously
async def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    assert (await raw(place, "GET", "/")).status_code == 404
    assert (await raw(place, "GET", "/v1/token")).status_code == 405
    assert (await raw(place, "POST", "/v1/device")).status_code == 401


@pytest.fixture
def burst(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many requests may come at once: few."""
    monkeypatch.setattr(service, "BURST", 24)
    return service.BURST


@asynchronously
async def test_who_asks_too_often_has_to_wait(tmp_path: Path, burst: int) -> None:
    place = Place(tmp_path, people("alice"))
    for _ in range(burst):
        assert (await raw(place, "GET", "/v1/offer")).status_code == 200
    busy = await raw(place, "GET", "/v1/offer")
    assert (busy.status_code, busy.headers["Retry-After"]) == (429, "1")
    await token_of(place, PEER)  # the client waits, and comes again
    assert place.pauses


@asynchronously
async def test_many_people_behind_one_address_get_in_and_those_who_guess_do_not_get_more(
    tmp_path: Path, burst: int
) -> None:
    place = Place(tmp_path, people("alice", more="peers = 100\n"))
    for _ in range(burst):
        await raw(place, "GET", "/v1/offer")
    await asyncio.gather(*(token_of(place, peer) for peer in peers(12)))
    assert len(seats(tmp_path)) == 12
    place.clock.now_s += burst
    for code in ["bad_request"] * (burst // 4) + ["busy"]:
        assert (await raw(place, "POST", "/v1/token", b"{}")).json()["code"] == code


@asynchronously
async def test_each_failure_counts_once_and_a_broken_connection_is_none(tmp_path: Path, burst: int) -> None:
    place = Place(tmp_path, people("alice"))
    for code in ["login"] * int(burst / OF_A_FAILURE) + ["busy"]:
        assert (await raw(place, "POST", "/v1/device")).json()["code"] == code
    place.clock.now_s += burst
    scope = {"type": "http", "method": "POST", "path": "/v1/token", "headers": [], "client": ("127.0.0.1", 1)}

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def nobody_hears(_: Any) -> None:
        pass

    for _ in range(burst):
        await place.authority.app(dict(scope), gone, nobody_hears)
    assert {told["code"] for _, told in place.told[-burst:]} == {"slow"}


class Odd(Message, frozen=True, tag="\x1b[2J", tag_field="way"):
    """A way to log in that clears the screen of whoever reads of it."""


@asynchronously
async def test_the_operators_terminal_obeys_no_client(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    body = await signed(place, login=Odd())
    place.transport = httpx2.ASGITransport(place.authority.app, client=("\x1b[2J", 1))
    await raw(place, "POST", "/v1/token", body)
    ((_, refused),) = place.told
    assert "2J" in refused["why"]
    assert all(map(str.isprintable, refused.values()))


def test_addresses_are_counted_apart_and_networks_together() -> None:
    limit = RateLimit(1, 0.5, lambda: 0.0)
    assert [limit.wait_s("192.0.2.1"), limit.wait_s("192.0.2.1"), limit.wait_s("192.0.2.2")] == [0.0, 2.0, 0.0]
    assert [limit.wait_s("2001:db8::1"), limit.wait_s("2001:db8:0:1::1"), limit.wait_s("2001:db8:0:100::1")] == [
        0.0,
        2.0,
        0.0,
    ]
    assert [limit.wait_s("::ffff:192.0.2.3"), limit.wait_s("192.0.2.3"), limit.wait_s("::ffff:192.0.2.4")] == [
        0.0,
        2.0,
        0.0,
    ]


@asynchronously
async def test_no_secret_is_told_or_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    await token_of(place, PEER)
    await refusal(place, PEER, ByCode("alice", "secret-guess"))
    assert [kind for kind, _ in place.told] == ["authority.issued", "authority.refused"]
    everything = repr(place.told) + (tmp_path / "allow.roster.json").read_text()
    assert not re.search("secret-guess|aaaa-bbbb|scrypt", everything)


# ---- an authority that is down, or another


@pytest.mark.parametrize(
    ("name", "value"),
    [("ALL_PROXY", "socks://127.0.0.1:1080/"), ("ALL_PROXY", "http://a:b:c"), ("SSL_CERT_FILE", "/nowhere/ca.pem")],
)
def test_settings_for_web_requests_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="a proxy, certificates"):
        AuthorityClient("https://a.example", RUN)


@asynchronously
async def test_an_authority_that_is_down_is_asked_again_and_then_named(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    works, failures = place.transport, [httpx2.ConnectError("refused"), None, httpx2.ReadError("gone")]

    async def flaky(request: httpx2.Request) -> httpx2.Response:
        if failures and (failure := failures.pop(0)) is not None:
            raise failure
        return await works.handle_async_request(request)

    place.transport = httpx2.MockTransport(flaky)
    await token_of(place, PEER)
    assert place.pauses == [1.0, 2.0]
    place.transport = httpx2.MockTransport(lambda _: httpx2.Response(502, text="<html>bad gateway</html>"))
    place.pauses.clear()
    with pytest.raises(UnreachableError, match=r"the authority http://127.0.0.1:8470, where people log in.*502"):
        await token_of(place, PEER)
    assert place.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, text="<html>a web page</html>"),
        httpx2.Response(302, headers={"Location": "https://elsewhere.test/"}),
        httpx2.Response(404),
        httpx2.Response(200, content=b'{"run":"' + b"A" * 9000),
    ],
)
@asynchronously
async def test_what_is_no_authority_is_named(tmp_path: Path, answer: httpx2.Response) -> None:
    place = Place(tmp_path, people("alice"))
    place.transport = httpx2.MockTransport(lambda _: answer)
    with pytest.raises((ProtocolError, UnreachableError), match=r"no authority of this version|more than 8192 bytes"):
        await token_of(place, PEER)


@asynchronously
async def test_what_an_authority_says_cannot_move_the_cursor(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    place.transport = httpx2.MockTransport(lambda _: httpx2.Response(403, json={"code": "x", "message": "\x1b[2Jgone"}))
    with pytest.raises(UnreachableError) as caught:
        await token_of(place, PEER)
    assert str(caught.value).isprintable()
    answer = {"device": "d", "url": "http://evil.test", "code": "A", "interval_s": 1, "expires_s": 9}
    place.transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer))
    with pytest.raises(ProtocolError, match="no https:// address"):
        await place.client().begin_device()


class Nobody:
    """A person who may not be asked."""

    def has_secret(self) -> bool:
        raise AssertionError

    name = secret = open_browser = wait = welcome = is_ready = has_secret


@pytest.mark.parametrize(("status", "body"), [(503, ""), (404, "not found"), (403, "<html>"), (301, ""), (200, "<p>")])
@asynchronously
async def test_a_kept_token_will_do_while_the_authority_is_down(tmp_path: Path, status: int, body: str) -> None:
    """Or while a proxy answers for it."""
    place = Place(tmp_path, people("alice"))
    kept = await token_of(place, PEER)
    place.transport = httpx2.MockTransport(lambda _: httpx2.Response(status, text=body))
    log_in = LogIn(place.client(), Nobody(), place.sleep)  # type: ignore[arg-type]
    access = invitation_link().access
    assert access is not None
    for good in (kept, access.token_for(PEER.peer_id)):
        assert await log_in.obtain(PEER, good) == good
    with pytest.raises(UnreachableError):
        await log_in.obtain(PEER, None)


@asynchronously
async def test_who_has_a_good_token_does_not_wait_for_long_where_others_ask_too_often(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    kept = await token_of(place, PEER)
    place.transport = httpx2.MockTransport(lambda _: httpx2.Response(429, headers={"Retry-After": "60"}))
    log_in = LogIn(place.client(), Nobody(), place.sleep, place.clock)  # type: ignore[arg-type]
    assert await log_in.obtain(PEER, kept) == kept
    assert len(place.pauses) < ATTEMPTS


@asynchronously
async def test_a_clock_that_is_further_ahead_than_a_token_lives_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    person = Credentials("alice", CODES["alice"])
    for ahead_s, is_told in ((6 * HOUR_S, False), (7 * HOUR_S, True)):

        def wrong(ahead_s: float = ahead_s) -> float:
            return place.clock.now_s + ahead_s

        with pytest.raises(LocalError, match=r"clock is wrong.* 1 h ago") if is_told else contextlib.nullcontext():
            await LogIn(place.client(), person, place.sleep, wrong).obtain(PEER, None)


@asynchronously
async def test_a_program_brings_its_credentials_or_a_key_that_is_known(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))

    async def obtain(person: Credentials) -> Token:
        client = place.client()
        try:
            return await LogIn(client, person, place.sleep).obtain(PEER, None)
        finally:
            await client.close()

    for lacking, cause in ((Credentials(), "no name was given"), (Credentials("alice"), "wants the code of alice")):
        with pytest.raises(ConfigurationError, match=cause):
            await obtain(lacking)
    await obtain(Credentials("alice", CODES["alice"]))
    await obtain(Credentials())
    assert CODES["alice"] not in repr(Credentials("alice", CODES["alice"]))


@asynchronously
async def test_who_brought_all_is_logged_in_again_where_the_authority_forgot_its_key(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    output = Output(json_output=False)
    persons = Credentials(), PersonAtTerminal(None, tmp_path / "code", output)  # who would have to be asked in the end
    for person in persons:
        with pytest.raises(LoginNeeded):
            await LogIn(place.client(), person, place.sleep).renew(PEER)
    with pytest.raises(RejectedError, match="the code is wrong"):
        await LogIn(place.client(), Credentials("alice", CODES["bob"]), place.sleep).renew(PEER)
    await LogIn(place.client(), Credentials("alice", CODES["alice"]), place.sleep).renew(PEER)


def test_who_has_access_without_a_login_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, next_one = peers(3)
    spec = members_spec(organisers=(first, second))
    run = spec.run_id
    link = Link(run, first.peer_id, (EntryPoint(first.peer_id),), authority="https://a.example")
    files, known = AccessFiles(tmp_path), (SignedRunSpec.sign(spec, first), spec)
    admitted = invitation(spec, first).token_for(PEER.peer_id)
    assert admitted.expires is not None
    files.keep_token(PEER.peer_id, admitted)
    logged_in: list[str] = []

    async def obtain(_: LogIn, peer: Identity, kept: Token | None) -> Token:
        logged_in.append(peer.peer_id)
        return admitted

    monkeypatch.setattr(LogIn, "obtain", obtain)

    def logs_in(peer: Identity, person: Credentials, *, now_s: float = 0.0, knows: bool = True) -> bool:
        logged_in.clear()
        access = RunAccess(files, link, known if knows else None, keeps=True, person=person)
        access.log_in(peer, now_s)
        return bool(logged_in)

    nothing, alice = Credentials(), Credentials("alice", CODES["alice"])
    assert not logs_in(PEER, nothing, knows=False)
    assert logs_in(PEER, nothing, now_s=admitted.expires)
    assert logs_in(PEER, alice), "who brings credentials wants to use them"
    assert logs_in(OTHER, nothing)
    assert logs_in(second, nothing, knows=False)
    assert [logs_in(peer, alice) for peer in (first, second, next_one)] == [False, False, True]
    handed = Transfer(bytes.fromhex(run), 0, 0, (), (bytes.fromhex(next_one.peer_id),), 1)
    files.keep_orders([handed.signed_by(first)])
    assert [logs_in(peer, alice) for peer in (first, second, next_one)] == [False, True, False], "in the present term"


def test_an_interrupt_ends_a_login_where_a_loop_runs_already() -> None:
    """In a notebook: it is not waited for until the person has logged in after all."""
    before, ended = signal.signal(signal.SIGINT, signal.default_int_handler), list[str]()

    async def login() -> None:
        try:
            _thread.interrupt_main()
            await asyncio.sleep(4.0)
            ended.append("of itself")
        finally:
            ended.append("now")

    async def cell() -> None:
        _completed(login())

    with contextlib.closing(asyncio.new_event_loop()) as loop, pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    signal.signal(signal.SIGINT, before)
    assert ended == ["now"]


@asynchronously
async def test_logins_work_where_a_loop_runs_already() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert _completed(answer()) == 42


# ---- files


def test_codes() -> None:
    code = new_code()
    assert re.fullmatch("([a-z2-7]{4}-){3}[a-z2-7]{4}", code)
    stored = hashed(code)
    assert re.match(HASH_PATTERN, stored)
    assert stored.startswith("scrypt:14:8:1:")
    assert (fits(code, stored), fits(code[:-1] + "9", stored), code in stored) == (True, False, False)
    assert fits(" " + code.upper().replace("-", " ", 1).replace("-", "", 1), stored), "typed carelessly"
    assert hashed(code) != stored


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("peers = 2", "names nobody"),
        ("peers = -1", "peers"),
        ("people = 3", "people"),
        ('token = "forever"', "not a duration"),
        ('token = "1s"', "between 1 minute"),
        ("colour = 1", "colour: unknown key"),
        ('tokens = "6h"', "did you mean token?"),
        ("[people.alice]\npeer = 2", "did you mean peers?"),
        ('[people."a b"]', "people"),
        ('[people.alice]\ncode = "plain"', "people.alice.code"),
        ('[people.alice]\nuntil = "2027-01-31"', "people.alice.until: write a day or a moment without quotes"),
        ("[people.alice]\nuntil = 20270131", "people.alice.until: write a day or a moment"),
        ('[provider]\nkind = "ldap"', "provider.kind"),
        ('[provider]\nkind = "oauth"\nclient_id = "x"', "needs device_url, token_url, user_url"),
        ('[provider]\nkind = "huggingface"\nendpoint = "http://hub.test"', "https://"),
        ('[provider]\norganisation = "x"', "huggingface"),
    ],
)
def test_mistakes_in_the_list_are_named(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "allow.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        AllowList.read(path)
    assert (cause in str(caught.value), str(path) in str(caught.value)) == (True, True), str(caught.value)
    assert "plain" not in str(caught.value), "no secret is repeated"


def test_a_roster_that_is_damaged_or_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match="damaged"):
        RosterFile(path, RUN, lambda: 0.0)
    path.write_text(json.dumps({"format": "minga-authority-1", "run": "cd" * 32, "seats": {}}))
    with pytest.raises(ConfigurationError, match="another run"):
        RosterFile(path, RUN, lambda: 0.0)
    with pytest.raises(StorageError):
        RosterFile(tmp_path / "roster.json.lock" / "x.json", RUN, lambda: 0.0)


def test_an_authority_needs_an_invitation(tmp_path: Path) -> None:
    place = Place(tmp_path, people("alice"))
    plain = Link(RUN, ORGANISER.peer_id, invitation_link().entries)
    with pytest.raises(ConfigurationError, match="minga admit LINK --uses 500"):
        Issuer(plain, place.allowed, place.roster, place.clock)
    with pytest.raises(ConfigurationError, match="that has not ended"):
        Issuer(invitation_link(valid_s=-1.0), place.allowed, place.roster, place.clock)
