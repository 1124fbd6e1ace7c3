"""The dashboard over HTTP: who may ask, what is answered, live messages, the end, a new start."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from minga.core import web_server as connection
from minga.core.errors import ClosedError, ConfigurationError, LocalError
from minga.core.events.averaging import RoundMemberLost
from minga.core.spec.sections import NetworkSection
from minga.core.wheel import own_wheel
from minga.dashboard import dashboard as dashboard_module
from minga.dashboard.dashboard import LEADERBOARD_FILE, Dashboard
from minga.dashboard.live_run import LiveRun
from minga.dashboard.server.metrics import metrics_text, registry_of
from minga.dashboard.server.web_server import WebServer
from minga.dashboard.settings import DashboardSettings
from minga.monitor.history import RECORD_FILE, Entry, History, read_history
from minga.receipts.book import PeerTotals
from tests.worlds.made_up_run import BEGIN_S, LINK, MadeUpRun, peer_id


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(dashboard: Dashboard, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    address = urlsplit(dashboard.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10.0)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body.encode(), {"Host": address.netloc, **named})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def settle(dashboard: Dashboard) -> None:
    """Wait until the server's thread took in all that it was told."""
    done = threading.Event()
    dashboard._server.on_loop(done.set)
    assert done.wait(10.0)


@pytest.fixture(scope="module")
def run() -> Iterator[MadeUpRun]:
    made = MadeUpRun(6)
    yield made
    made.close()


@pytest.fixture(scope="module")
def dashboard(run: MadeUpRun) -> Iterator[Dashboard]:
    served = run.serve(None, is_organisers=True)
    for _ in range(12):
        run.advance(1.0)
    settle(served)
    yield served
    served.close()


# ---- what is answered


@pytest.mark.parametrize("path", ["/", f"/peers/{'a' * 64}", "/join"])
def test_each_page_comes_with_the_policy(dashboard: Dashboard, path: str) -> None:
    answer = ask(dashboard, path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';" if path == "/join" else "default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers


def test_the_pages_name_no_foreign_host_and_hold_no_script_or_style() -> None:
    static = Path(__file__).parents[3] / "src" / "minga" / "dashboard" / "static"
    page = (static / "index.html").read_text("utf-8")
    assert "<style" not in page
    assert " style=" not in page
    assert "<script>" not in page
    for file in [static / "index.html", *static.glob("js/*.js"), *static.glob("css/*.css")]:
        text = file.read_text("utf-8")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name
        assert "innerHTML" not in text, file.name


def test_files_are_sent_once_and_only_those_of_the_package(dashboard: Dashboard) -> None:
    first = ask(dashboard, "/static/vendor/uplot.js")
    assert (first.status, first.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert ask(dashboard, "/static/vendor/uplot.js", If_None_Match=first.headers["etag"]).status == 304
    assert b"Permission is hereby granted" in ask(dashboard, "/static/vendor/uplot-LICENSE.txt").body
    for path in ("/static/../settings.py", "/static/..%2fsettings.py", "/static/%2e%2e/settings.py", "/static/"):
        assert ask(dashboard, path).status == 404


def test_the_run_is_answered_as_json(dashboard: Dashboard, run: MadeUpRun) -> None:
    found = ask(dashboard, "/api/v1/run").json()
    assert (found["api"], found["name"], found["now"]["state"]) == (1, "a made-up run", "training")
    assert found["series"]["loss"]["columns"]["step"][-1] == run.step
    assert found["now"]["peers"]["alive"] == 6
    assert found["journals"]["rounds"]["total"] == run.step
    anatomy = found["journals"]["rounds"]["entries"][-1]
    assert all(anatomy[f"{phase}_s"] is not None for phase in ("compute", "wait", "communicate", "apply"))
    assert set(ask(dashboard, "/api/v1").json()["endpoints"]) >= {"run", "peers", "leaderboard", "join"}


def test_answers_are_compressed_for_who_takes_that(dashboard: Dashboard) -> None:
    plain, packed = (ask(dashboard, "/api/v1/run", Accept_Encoding=way) for way in ("identity", "gzip"))
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


def test_peers_and_what_they_gave_are_answered(dashboard: Dashboard) -> None:
    peers = ask(dashboard, "/api/v1/peers").json()["peers"]
    assert [peer["peer_id"] for peer in peers] == [peer_id(number) for number in range(6)]
    one = ask(dashboard, f"/api/v1/peers/{peer_id(3)}").json()
    assert one["now"]["samples_per_second"] == 40.0
    assert one["given"]["samples"] > 0
    assert ask(dashboard, f"/api/v1/peers/{'f' * 64}").status == 404
    assert ask(dashboard, "/api/v1/peers/nobody").status == 404
    rows = ask(dashboard, "/api/v1/leaderboard").json()["rows"]
    assert [row["place"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_every_field_of_the_answers_is_on_the_page_about_them(dashboard: Dashboard) -> None:
    page = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text("utf-8")
    answers = [ask(dashboard, f"/api/v1/{name}").json() for name in ("run", "peers", "leaderboard")]
    run, peers, leaderboard = answers
    fields = {*run, *run["now"], *run["series"], *run["journals"], *peers, *peers["peers"][0]}
    fields |= {*leaderboard, *leaderboard["rows"][0], *ask(dashboard, f"/api/v1/peers/{peer_id(3)}").json()}
    fields |= {column for series in run["series"].values() for column in series["columns"]}
    assert sorted(field for field in fields if f"`{field}`" not in page) == []


def test_the_way_in_is_answered_with_the_link(dashboard: Dashboard) -> None:
    wheel = own_wheel()
    assert wheel is not None
    found = ask(dashboard, "/api/v1/join").json()
    assert found["command"] == f"minga join {LINK}"
    address = urlsplit(dashboard.url)
    assert found["source"] == f"http://{address.netloc}/{wheel.reference}"
    page = ask(dashboard, "/join").body.decode()
    assert f"python -m pip install --no-compile 'minga[data] @ {found['source']}'" in unescape(page)
    assert "LINK" not in page.replace(LINK, "")
    assert "organiser's own copy" in unescape(page)
    assert "Only this machine reaches this page" in page
    served = ask(dashboard, f"/{wheel.name}")
    assert served.headers["content-length"] == str(len(wheel.data))
    assert hashlib.sha256(served.body).hexdigest() == wheel.sha256
    cells = json.loads(ask(dashboard, "/join.ipynb").body)["cells"]
    assert any(f'LINK = "{LINK}"' in "".join(cell["source"]) for cell in cells)


def test_code_of_others_than_the_organiser_is_not_handed_out() -> None:
    """A viewer's own dashboard hands out its minga only if it is the one that the organiser signed."""
    run = MadeUpRun(2)
    wheel = own_wheel()
    assert wheel is not None
    as_signed = run.peer.spec.model_copy(update={"wheel": wheel.reference})
    another = run.peer.spec.model_copy(update={"wheel": f"{wheel.name}#sha256={'0' * 64}"})
    elsewhere = run.peer.spec.model_copy(
        update={"network": NetworkSection(source_url="git+https://example.org/minga@v1"), "wheel": None}
    )
    try:
        for spec, status, text in (
            (as_signed, 200, "as the organiser has signed it"),
            (another, 404, "hands out no copy of minga"),
            (elsewhere, 404, "minga[data] @ git+https://example.org/minga@v1"),
        ):
            cast(Any, run.peer).spec = spec
            served = run.serve(None)
            assert ask(served, f"/{wheel.name}").status == status
            assert text in ask(served, "/join").body.decode()
            served.close()
    finally:
        run.close()


def test_a_complete_run_recruits_nobody() -> None:
    run = MadeUpRun(2)
    run.step = 100_000
    served = run.serve(None)
    try:
        run.advance(1.0)
        settle(served)
        page = ask(served, "/join").body.decode()
        assert f"minga export {LINK} --out model" in page
        assert "minga join" not in page.replace("<code>minga join</code>", "")
        assert "Take part" not in page
    finally:
        served.close()
        run.close()


def test_metrics_are_those_of_prometheus(dashboard: Dashboard, run: MadeUpRun) -> None:
    answer = ask(dashboard, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert families["minga_step"].samples[0].value == run.step
    assert len(families["minga_peer_samples_per_second"].samples) == 6
    phases = {sample.labels["phase"] for sample in families["minga_round_seconds"].samples}
    assert phases == {"compute", "wait", "communicate", "apply"}


def test_a_peer_whose_totals_are_unknown_has_no_counters(run: MadeUpRun) -> None:
    look, live = run.advance(1.0), LiveRun()
    first, second, *_ = look.status.peers
    unheard = replace(first, total_samples=None, bytes_sent=None, bytes_received=None)
    live.take_look(look._replace(status=replace(look.status, peers=(unheard, second))), {})
    families = text_string_to_metric_families(metrics_text(registry_of(live)).decode())
    known = {family.name: [sample.labels["peer"] for sample in family.samples] for family in families
             if family.name.startswith("minga_peer_")}  # fmt: skip
    assert len(known.pop("minga_peer_samples_per_second")) == 2
    assert known == {name: [second.peer_id] for name in known}, "a counter that falls to 0 is counted anew"
    assert len(known) == 3


def test_before_the_first_look_the_api_says_so(run: MadeUpRun) -> None:
    early = run.serve(None)
    try:
        answer = ask(early, "/api/v1/run")
        assert (answer.status, answer.json()) == (503, {"error": "the run was not seen yet"})
        assert ask(early, "/metrics").status == 200
    finally:
        early.close()


def test_a_run_for_members_shows_names_and_no_link() -> None:
    club = MadeUpRun(3, admission="members")
    club.people = {peer_id(1): "ada"}
    served = club.serve(None)
    try:
        club.advance(1.0)
        settle(served)
        assert ask(served, "/api/v1/peers").json()["peers"][1]["name"] == "ada"
        assert "ada" in [row["name"] for row in ask(served, "/api/v1/leaderboard").json()["rows"]]
        found = ask(served, "/api/v1/join")
        assert found.json()["link"] is None
        assert LINK.encode() not in found.body
        assert found.json()["command"] == "minga join LINK"
        page = ask(served, "/join")
        assert LINK.encode() not in page.body
        assert b"ask its organiser for an invitation" in page.body
        assert ask(served, "/join.ipynb").status == 404
    finally:
        served.close()
        club.close()


# ---- live


class Stream:
    """A viewer that follows."""

    def __init__(self, dashboard: Dashboard) -> None:
        address = urlsplit(dashboard.url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=20.0)
        self.socket.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        self.lines = self.socket.makefile("rb")
        while self.lines.readline().strip() != b"retry: 2000":
            pass

    def next(self) -> Any:
        while True:
            line = self.lines.readline()
            if not line or line.startswith(b"data: "):
                return json.loads(line[6:]) if line else None

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


def test_viewers_hear_of_a_dead_peer(dashboard: Dashboard, run: MadeUpRun) -> None:
    stream = Stream(dashboard)
    try:
        run.gone = {5}
        run.history.add(run.time_s, "lost", peer=peer_id(5))
        run.emit(RoundMemberLost(step=run.step, peer=peer_id(5), why="silent", round="r"))
        run.advance(1.0)
        message = stream.next()
        assert message["now"]["peers"]["alive"] == 5
        assert message["journals"]["marks"]["entries"][-1]["event"] == "lost"
        assert message["journals"]["misses"]["entries"][-1]["peer"] == peer_id(5)
    finally:
        run.gone = set()
        stream.close()


def test_viewers_hear_on_while_a_member_is_asked_for_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "TICK_S", 0.02)
    run, asked, answered = MadeUpRun(3), threading.Event(), threading.Event()

    def receipts() -> dict[str, PeerTotals]:
        asked.set()
        answered.wait()
        return {peer_id(1): PeerTotals(samples=77)}

    cast(Any, run.peer).receipts = receipts
    served = run.serve(None)
    stream = Stream(served)
    try:
        run.advance(1.0)
        assert asked.wait(10.0)
        for _ in range(2):
            look = run.advance(1.0)
            while stream.next()["now"]["t"] < look.time_s:
                pass
        answered.set()
        end_s = time.monotonic() + 10.0
        while 77 not in [r["attested_samples"] for r in ask(served, "/api/v1/leaderboard").json()["rows"]]:
            assert time.monotonic() < end_s
    finally:
        answered.set()
        stream.close()
        served.close()
        run.close()


def test_open_streams_do_not_hold_the_end(run: MadeUpRun) -> None:
    served = run.serve(None)
    streams = [Stream(served) for _ in range(3)]
    served.close()
    assert not served._thread.is_alive()
    assert [stream.next() for stream in streams] == [None, None, None]
    for stream in streams:
        stream.close()


# ---- who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8471", "", "127.0.0.1.evil.example", "192.0.2.1", "a b"]
)
def test_a_foreign_name_for_this_server_is_refused(dashboard: Dashboard, host: str) -> None:
    answer = ask(dashboard, "/api/v1/run", Host=host)
    assert answer.status == 421
    assert b"samples" not in answer.body


def test_beyond_this_machine_viewers_need_the_token(run: MadeUpRun) -> None:
    served = run.serve(None, url="https://run.example.org")
    run.advance(1.0)
    settle(served)
    local = replace_url(served)
    try:
        assert "?token=" in served.url
        token = served.settings.read_token
        assert ask(local, "/").status == 401
        assert ask(local, "/api/v1/run", Host="run.example.org").status == 401
        assert ask(local, "/metrics", Authorization=f"Bearer {token}").status == 200
        assert ask(local, "/metrics", Authorization=f"Bearer {token}x").status == 401
        assert ask(local, "/?token=wrong").status == 401
        entered = ask(local, f"/peers?token={token}")
        assert (entered.status, entered.headers["location"]) == (303, "/peers")
        for path in ("//evil.example/peers", "///evil.example/peers", "/%2fevil.example/peers"):
            assert ask(local, f"{path}?token={token}").headers["location"] == "/evil.example/peers"
        cookie = entered.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure"))
        assert ask(local, "/", Cookie=cookie.split(";")[0], Host="run.example.org").status == 200
        beside = f'other={{"a": [1]}}; {cookie.split(";")[0]}; more'
        assert ask(local, "/", Cookie=beside).status == 200, "other servers of this host may have cookies of any form"
    finally:
        served.close()


def replace_url(dashboard: Dashboard) -> Any:
    """The same by the address of this machine, for requests that come through a proxy."""
    return SimpleNamespace(url=dashboard._server.urls[0])


@pytest.mark.parametrize("admission", ["open", "members"])
def test_newcomers_to_an_open_run_need_no_token_and_people_get_pages(admission: str) -> None:
    wheel, run = own_wheel(), MadeUpRun(3, admission=admission)
    assert wheel is not None
    served = run.serve(None, is_organisers=True, url="https://run.example.org")
    is_open, local = admission == "open", replace_url(served)
    run.advance(1.0)
    settle(served)
    try:
        for path, status in {
            f"/{wheel.name}": 200,
            "/static/css/theme.css": 200,
            "/join": 200 if is_open else 401,
            "/join.ipynb": 200 if is_open else 401,
            "/": 401,
            "/api/v1/run": 401,
            "/api/v1/join": 401,
            "/metrics": 401,
            "/join/": 401,
            "/staticx": 401,
        }.items():
            assert ask(local, path, Host="run.example.org").status == status, path
        assert ask(local, "/join", "POST").status == 401
        assert ask(local, f"/{wheel.name}", Host="evil.example").status == 421
        refused = ask(local, "/", Accept="text/html,*/*;q=0.8")
        assert (refused.status, refused.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert (b'href="/join"' in refused.body) is is_open
        assert served.settings.read_token.encode() not in refused.body
        assert ask(local, "/").json()["error"]
        assert (served.join_url is None) is not is_open
        if is_open:
            page = ask(local, "/join", Host="run.example.org").body.decode()
            assert f"https://run.example.org/{wheel.reference}" in page
            code = page.partition("<svg")[2].partition("</svg>")[2]
            assert "The camera of another device opens this page: https://run.example.org/join" in code
            assert 'href="/peers"' not in page, "without a token there is no way to the other pages"
            token = {"Authorization": f"Bearer {served.settings.read_token}"}
            assert b'href="/peers"' in ask(local, "/join", **token).body
    finally:
        served.close()
        run.close()


def test_each_viewer_gets_the_address_by_which_others_come(run: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Host` that one viewer made up is in no other viewer's commands, and 127.0.0.1 is in none."""
    monkeypatch.setattr("minga.dashboard.server.web_server.reachable_hosts", lambda host: ["192.0.2.7", "[fd00::7]"])
    served = run.serve(None, host="0.0.0.0", is_organisers=True)
    try:
        port = urlsplit(served.urls[0]).port
        token = f"/?token={served.settings.read_token}"
        assert served.urls == [f"http://192.0.2.7:{port}{token}", f"http://[fd00::7]:{port}{token}"]
        assert served.join_url == f"http://192.0.2.7:{port}/join"
        local = SimpleNamespace(url=f"http://127.0.0.1:{port}")
        for host, shown in (("198.51.100.9:99", "198.51.100.9:99"), ("127.0.0.1", f"192.0.2.7:{port}")):
            page = ask(local, "/join", Host=host).body.decode()
            assert f"minga[data] @ http://{shown}/minga-" in page
            assert page.count("minga[data] @ http://") == page.count(f"minga[data] @ http://{shown}/")
            assert "Only this machine" not in page
    finally:
        served.close()


@given(st.text(max_size=30) | st.text("[]:.127locahst", max_size=12))
def test_any_text_may_stand_in_place_of_a_host(header: str) -> None:
    for chosen in (DashboardSettings(), DashboardSettings(host="0.0.0.0", url="https://run.example.org")):
        assert chosen.accepts_host(header) in (True, False)
    assert not DashboardSettings().accepts_host(f"x{header}")


def test_settings_say_who_needs_a_token() -> None:
    assert not DashboardSettings.listening("127.0.0.1:1").needs_token
    assert not DashboardSettings.listening("[::1]:1").needs_token
    assert DashboardSettings.listening("0.0.0.0:1").needs_token
    assert not DashboardSettings.listening("0.0.0.0:1", public=True).needs_token
    local = DashboardSettings()
    assert all(map(local.accepts_host, ("localhost:8471", "127.0.0.1:8471", "[::1]:8471", "127.0.0.1")))
    for url in ("run.example.org", "ftp://run.example.org", "http://[::1", "https://run.example.org/path"):
        with pytest.raises(ConfigurationError, match="write an address such as"):
            DashboardSettings(url=url)
    assert DashboardSettings(url="https://Run.example.org:8443/").accepts_host("run.example.org:8443")


def test_a_port_that_is_taken_is_said(dashboard: Dashboard, run: MadeUpRun) -> None:
    port = urlsplit(dashboard.url).port
    with pytest.raises(ConfigurationError, match="cannot listen at"):
        Dashboard(run.peer, run.watcher, DashboardSettings(port=port or 0), directory=None)


def test_a_dashboard_whose_peer_was_closed_does_not_start_and_gives_its_address_back() -> None:
    ended = MadeUpRun(2)

    def refuse(_: object) -> None:
        raise ClosedError("this peer was closed")

    cast(Any, ended.peer).on_loop = refuse
    unstarted = Dashboard(ended.peer, ended.watcher, DashboardSettings(port=0), directory=None)
    address = urlsplit(unstarted.url)
    with pytest.raises(ClosedError):
        unstarted.start()
    unstarted.close()
    unstarted.close()
    with socket.create_server((address.hostname or "", address.port or 0)):
        pass
    ended.close()


def test_a_server_that_fails_at_its_start_says_so() -> None:
    server = WebServer("127.0.0.1", 0)

    def make() -> Any:
        raise RuntimeError("no app")

    async def beside() -> None:
        pass

    with pytest.raises(RuntimeError, match="no app"):
        server.run(make, beside, lambda: None)
    with pytest.raises(LocalError, match="could not be started"):
        server.wait_until_started()


def test_a_dashboard_is_only_read(dashboard: Dashboard) -> None:
    for path in ("/", "/api/v1/run", "/api/v1/orders"):
        for method in ("POST", "DELETE"):
            assert ask(dashboard, path, method, "{}").status == 405


# ---- connections


@pytest.fixture
def hasty(run: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    """Looks after its connections 30 times as often, and has few."""
    monkeypatch.setattr(connection, "LOOK_S", 0.3)
    monkeypatch.setattr(connection, "MOST_OPEN", 3)
    served = run.serve(None, is_organisers=True)
    yield served
    served.close()


def connected(dashboard: Dashboard, send: bytes) -> socket.socket:
    address = urlsplit(dashboard.url)
    opened = socket.create_connection((address.hostname, address.port), timeout=20.0)
    opened.sendall(send)
    return opened


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: ", b"GET /api/v1 HTTP/1.1\r\nHost: localhost\r\n\r\nG"]
)
def test_a_connection_over_which_nothing_is_asked_is_closed(hasty: Dashboard, sent: bytes) -> None:
    with connected(hasty, sent) as opened, contextlib.suppress(ConnectionResetError):
        while opened.recv(4096):
            pass


def test_a_slow_download_comes_to_its_end(hasty: Dashboard) -> None:
    """Its connection waits for the reader at each look, as that of a viewer that does not read, but gets on."""
    wheel = own_wheel()
    assert wheel is not None
    ask_for = f"GET /{wheel.name} HTTP/1.1\r\nHost: localhost\r\n".encode()
    with connected(
        hasty, ask_for + b"\r\n" + ask_for + b"Connection: close\r\n\r\n"
    ) as opened:  # the system buffers one
        received = 0
        while piece := opened.recv(128 << 10):
            received += len(piece)
            time.sleep(0.03)
    assert received > 2 * len(wheel.data)


def test_a_viewer_that_does_not_read_is_cut_off_and_one_that_follows_is_not(hasty: Dashboard) -> None:
    stream = Stream(hasty)
    ask_for = b"GET /static/vendor/uplot.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(hasty, ask_for * 400) as opened:
        open_now = hasty._server._server.server_state.connections  # type: ignore[union-attr]
        while len(open_now) < 2:
            time.sleep(0.01)
        while len(open_now) > 1:
            time.sleep(0.01)
        assert opened.fileno() >= 0
    assert len(open_now) == 1
    stream.close()


def test_more_connections_than_there_is_room_for_are_closed_at_once(
    hasty: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [Stream(hasty) for _ in range(3)]
    with connected(hasty, b"") as opened, contextlib.suppress(ConnectionResetError):
        assert opened.recv(1) == b""
    for stream in streams:
        stream.close()


# ---- behind a monitor


def test_a_monitor_asks_a_host_for_what_it_cannot_see_and_shows_no_card_of_which_it_knows_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []

    async def ask_history(_: object, __: object, since: float, ___: float) -> list[dict[str, Any]]:
        return [entry for entry in told if entry["t"] > since]

    monkeypatch.setattr("minga.monitor.history.ask_history", ask_history)
    monkeypatch.setattr(dashboard_module, "HOST_PERIOD_S", 0.05)
    run = MadeUpRun(3, role="monitor")
    run.peer.session.node.connected = lambda: [peer_id(0)]  # type: ignore[method-assign]
    dashboard = run.serve(tmp_path)
    try:
        run.advance(1.0)  # no step: the made-up peer would take part in its round
        settle(dashboard)
        before = ask(dashboard, "/api/v1/run").json()
        assert not before["sees_rounds"]
        told += [
            {"t": BEGIN_S + 11.0, "event": "evaluation", "step": 2, "headline": "x_loss", "x_loss": 5.5},
            {"t": BEGIN_S + 12.0, "event": "round", "step": 2, "members": 3, "wanted": 3, "time_s": 1, "self": 2},
            {"t": BEGIN_S + 12.0, "event": "missed", "step": 2, "peer": peer_id(2), "why": "too late"},
            {"t": BEGIN_S + 12.0, "event": "joined", "peer": peer_id(2)},
        ]
        found = before
        while not found["sees_rounds"]:
            found = ask(dashboard, "/api/v1/run").json()
        assert found["series"]["evaluation"]["columns"]["value"] == [5.5]
        assert [each["why"] for each in found["journals"]["misses"]["entries"]] == ["too late"]
        assert found["now"]["counts"]["joined"] == 0, "comings it sees itself"
        time.sleep(0.2)
        assert ask(dashboard, "/api/v1/run").json()["now"]["counts"]["round"] == 1, "each is told once"
        monkeypatch.setattr(dashboard_module, "HOST_PERIOD_S", 60.0)  # nobody asks while the made-up run ends
        time.sleep(0.2)
        told.clear()
        dashboard.close()
        again = run.serve(tmp_path)
        run.advance(0.0)
        settle(again)
        assert ask(again, "/api/v1/run").json()["series"]["evaluation"]["columns"]["value"] == [5.5]
        again.close()
    finally:
        run.close()


# ---- a new start


def test_a_dashboard_that_starts_again_shows_what_was_before(tmp_path: Path) -> None:
    run = MadeUpRun(4, directory=tmp_path)
    try:
        first = run.serve(tmp_path)
        for _ in range(40):
            run.advance(1.0)
        run.history.add(run.time_s, "lost", peer=peer_id(2))
        run.emit(RoundMemberLost(step=run.step, peer=peer_id(2), why="silent", round="r"))
        settle(first)
        before, board = ask(first, "/api/v1/run").json(), ask(first, "/api/v1/leaderboard").json()["rows"]
        first.close()
        second = run.serve(tmp_path)
        look = run.advance(0.0)
        settle(second)
        after = ask(second, "/api/v1/run").json()
        assert look.status.step == before["now"]["step"]
        for name, series in before["series"].items():
            for column, values in series["columns"].items():
                assert after["series"][name]["columns"][column][: len(values)] == values, name
        assert after["journals"] == before["journals"]
        assert len(after["series"]["swarm"]["columns"]["t"]) == 9
        assert ask(second, "/api/v1/leaderboard").json()["rows"] == board
        second.close()
    finally:
        run.close()


def test_a_second_dashboard_shows_what_the_first_recorded_and_writes_nothing(tmp_path: Path) -> None:
    run = MadeUpRun(4)
    try:
        first = run.serve(tmp_path)
        for _ in range(10):
            run.advance(1.0)
        settle(first)
        board = ask(first, "/api/v1/leaderboard").json()["rows"]
        first.close()
        kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert kept.keys() == {RECORD_FILE, LEADERBOARD_FILE}
        second = run.serve(tmp_path, keeps=False)
        assert second._run.model.series["swarm"].document() == first._run.model.series["swarm"].document()
        run.advance(0.0)
        settle(second)
        assert ask(second, "/api/v1/leaderboard").json()["rows"] == board
        run.advance(60.0)
        settle(second)
        second.close()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept
    finally:
        run.close()


def test_what_others_told_at_one_start_is_there_at_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        {"t": BEGIN_S - 50.0, "event": "step", "step": 3, "loss": 5.0, "samples": 64, "total_samples": 192},
        {"t": BEGIN_S - 40.0, "event": "banned", "peer": peer_id(3), "why": "lied"},
    ]
    monkeypatch.setattr(dashboard_module, "told_since", lambda _, since: [each for each in told if each["t"] > since])
    run = MadeUpRun(2, role="monitor")
    try:
        for _ in range(2):
            served = run.serve(tmp_path)
            assert list(served._run.model.series["loss"].document()["columns"]["loss"]) == [5.0]
            assert served._run.model.counts["banned"] == 1
            served.close()
            served._record.add(BEGIN_S, "swarm", alive=2)  # the next start asks for what came after
    finally:
        run.close()


def test_others_are_asked_for_what_came_after_the_clock_of_this_machine_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = History(tmp_path / RECORD_FILE)
    for time_s in (BEGIN_S - 50.0, time.time() + 86_400.0):
        record.add(time_s, "swarm", alive=2)
    asked = list[float]()

    def told(_: object, since_s: float) -> list[Entry]:
        asked.append(since_s)
        return []

    monkeypatch.setattr(dashboard_module, "told_since", told)
    run = MadeUpRun(2, role="monitor")
    try:
        served = run.serve(tmp_path)
        assert asked == [BEGIN_S - 50.0]
        served._asked_s = time.time() + 86_400.0  # it was set back meanwhile
        served._missed_since(served._asked_s)
        assert served._asked_s <= time.time()
        served.close()
    finally:
        run.close()


def test_who_takes_part_asks_no_stranger_how_far_the_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lie = {"t": BEGIN_S - 5.0, "event": "step", "step": 1 << 53, "loss": 0.0, "total_samples": 1 << 53}
    monkeypatch.setattr(dashboard_module, "told_since", lambda *_: [lie])
    run = MadeUpRun(2)
    try:
        served = run.serve(tmp_path)
        assert served._run.model.samples_at_step == (0, 0)
        served.close()
    finally:
        run.close()


def test_a_leaderboard_is_kept_at_the_end_though_a_member_that_was_asked_for_receipts_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_module, "TICK_S", 0.02)
    monkeypatch.setattr(dashboard_module, "LEAVE_S", 0.0)  # it may end while the thread still waits
    run, asked, answered = MadeUpRun(3), threading.Event(), threading.Event()

    def receipts() -> dict[str, PeerTotals]:
        asked.set()
        answered.wait()
        return {}

    cast(Any, run.peer).receipts = receipts
    served = run.serve(tmp_path)
    try:
        run.advance(1.0)
        assert asked.wait(10.0)
        served.close()
        while not (tmp_path / LEADERBOARD_FILE).exists():
            assert served._thread.is_alive()
            time.sleep(0.02)
    finally:
        answered.set()
        served._thread.join()
        run.close()


def test_a_disk_that_refuses_ends_neither_the_page_nor_the_record(tmp_path: Path) -> None:
    run = MadeUpRun(2)
    try:
        served = run.serve(tmp_path)
        (tmp_path / RECORD_FILE).mkdir()
        for _ in range(20):
            run.advance(1.0)
        settle(served)
        assert ask(served, "/api/v1/run").json()["now"]["step"] == run.step
        (tmp_path / RECORD_FILE).rmdir()
        run.advance(3600.0)
        settle(served)
        assert read_history(tmp_path / RECORD_FILE)
        served.close()
    finally:
        run.close()


def test_one_look_is_enough_for_any_number_of_viewers(dashboard: Dashboard, run: MadeUpRun) -> None:
    made: list[str] = []
    live = dashboard._run
    original = live.model.rates.document
    live.model.rates.document = lambda: made.append("run") or original()  # type: ignore[method-assign, func-returns-value]
    try:
        run.advance(1.0)
        settle(dashboard)
        bodies = {ask(dashboard, "/api/v1/run").body for _ in range(5)}
        assert (len(bodies), made) == (1, ["run"])
    finally:
        live.model.rates.document = original  # type: ignore[method-assign]


def test_a_thousand_peers_are_told_of_less_often() -> None:
    crowd = MadeUpRun(1000)
    try:
        served = crowd.serve(None)
        for _ in range(8):
            crowd.advance(1.0)
        settle(served)
        assert served._run.look is not None
        assert crowd.time_s - served._run.look.time_s == 3.0, "every fourth second"
        served.close()
    finally:
        crowd.close()
