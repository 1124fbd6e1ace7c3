"""The pages in a real browser: of a live run with a death and a late peer, and of a made-up one with 1,000 peers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from minga.cli.taking_part.link import write_landing_page
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import EntryPoint, Link
from tests.worlds.chromium import DESKTOP, PHONE, browser, page, why_not
from tests.worlds.cli_run import ALONE, LOCAL, SPEC, Running
from tests.worlds.made_up_run import LINK, MadeUpRun, peer_id

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

PAGES = ("run", "peers", "leaderboard", "join")
SLOW = ("--max-upload", "400kbit")
"""Rounds of a second, in which nothing is computed: this test is not about speed."""
PATIENCE_MS = 40_000.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


def wait_for_text(opened: Any, selector: str, text: str) -> None:
    opened.locator(selector).filter(has_text=text).first.wait_for(timeout=PATIENCE_MS)


def address_of(url: str, name: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{'' if name == 'run' else name}"


def test_a_live_run_is_shown_with_a_death_and_a_late_peer(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SPEC)
    with ExitStack() as stack:

        def start(*words: str, name: str, own: tuple[str, ...] = (*ALONE, *SLOW)) -> Running:
            return stack.enter_context(Running(*words, *own, "--directory", str(tmp_path / name)))

        host = start(
            "host", str(tmp_path / "run.toml"), "--dashboard", "--dashboard-listen", "127.0.0.1:0", name="host"
        )
        told = host.wait_for("dashboard")
        url = told["url"]
        link = host.wait_for("link")["link"]
        with page(chromium) as opened:
            opened.goto(url)
            wait_for_text(opened, "#state", "no peer trains")
            wait_for_text(opened, "main", "No rounds yet.")
            first = start("join", link, "--yes", name="first")
            wait_for_text(opened, "[data-tile=peers] dd > span", "2")
            wait_for_text(opened, "#state", "training")
            opened.locator(".plot[aria-label^='Loss. Latest: training']").wait_for(timeout=PATIENCE_MS)
            opened.locator(".plot[aria-label^='Anatomy of the last rounds. Latest']").wait_for(timeout=PATIENCE_MS)

            first.process.kill()
            start("join", link, "--yes", name="late")
            wait_for_text(opened, ".log[aria-label='comings and goings'] li", "lost")
            wait_for_text(opened, "[data-tile=peers] dd > span", "2")
            wait_for_text(opened, "#state", "training")

            points = "document.querySelectorAll('.plot canvas').length"
            assert opened.evaluate(points) >= 5
            opened.get_by_role("button", name="Samples", exact=True).click()
            opened.locator(".plot[aria-label^='Loss. Latest: training']").wait_for(timeout=PATIENCE_MS)
            assert opened.problems == []
            assert opened.hosts == {urlsplit(url).netloc}
        shows_the_time_before_it_came(start("dashboard", link, "--listen", "127.0.0.1:0", name="monitor", own=LOCAL))


def shows_the_time_before_it_came(monitor: Running) -> None:
    """A dashboard elsewhere has asked the host for the history."""
    came = monitor.wait_for("dashboard")
    with urlopen(f"{came['url']}api/v1") as answer:
        assert json.load(answer)["api"] == 1
    for _ in range(100):
        with contextlib.suppress(HTTPError), urlopen(f"{came['url']}api/v1/run") as answer:
            run = json.load(answer)
            break
        time.sleep(0.1)
    assert run["series"]["loss"]["columns"]["t"][0] < came["t"] - 1.0
    assert "lost" in [mark["event"] for mark in run["journals"]["marks"]["entries"]]
    assert run["journals"]["rounds"]["total"] > 0


@pytest.fixture(scope="module")
def crowd() -> Iterator[tuple[MadeUpRun, str]]:
    run = MadeUpRun(1000)
    dashboard = run.serve(None)
    for number in range(60):
        run.advance(5.0)
        if number % 20 == 10:
            run.history.add(run.time_s, "joined", peer=peer_id(number))
    yield run, dashboard.url
    dashboard.close()
    run.close()


def test_a_thousand_peers_are_sorted_found_and_opened_by_keyboard(chromium: Any, crowd: tuple[MadeUpRun, str]) -> None:
    _, url = crowd
    with page(chromium) as opened:
        opened.goto(address_of(url, "peers"))
        rows = opened.locator("tbody tr")
        rows.first.wait_for(timeout=PATIENCE_MS)
        assert rows.count() == 100
        assert opened.locator("[role=status]").filter(has_text="1000 of 1000").count() == 1
        speeds = [float(text) for text in opened.locator("tbody tr td:nth-child(5)").all_inner_texts()]
        assert speeds == sorted(speeds, reverse=True)
        heading = opened.get_by_role("button", name="Samples/s")
        heading.focus()
        opened.keyboard.press("Enter")
        assert opened.locator("th[aria-sort=ascending]").inner_text().startswith("Samples/s")
        opened.get_by_role("searchbox").fill(peer_id(777))
        assert rows.count() == 1
        opened.get_by_role("link", name=peer_id(777)[:10]).press("Enter")
        wait_for_text(opened, "h2", "Contribution")
        assert opened.url.endswith(peer_id(777))
        opened.go_back()
        rows.first.wait_for(timeout=PATIENCE_MS)
        assert opened.problems == []


def test_a_search_without_result_and_a_peer_that_is_unknown_are_said(
    chromium: Any, crowd: tuple[MadeUpRun, str]
) -> None:
    _, url = crowd
    with page(chromium) as opened:
        opened.goto(address_of(url, "peers"))
        opened.locator("tbody tr").first.wait_for(timeout=PATIENCE_MS)
        opened.get_by_role("searchbox").fill("nobody has this name")
        opened.get_by_text("No peer fits.").wait_for(timeout=PATIENCE_MS)
        opened.goto(address_of(url, f"peers/{'e' * 64}"))
        opened.get_by_text("nothing is known of this peer").wait_for(timeout=PATIENCE_MS)


def test_where_nobody_looked_the_curve_has_a_hole(chromium: Any, crowd: tuple[MadeUpRun, str]) -> None:
    _, url = crowd
    with page(chromium) as opened:
        opened.goto(url)
        curve = """async ([t, y]) => (await import("/static/js/run_charts.js")).withGaps(t, t, y)"""
        held_out = """async () => (await import("/static/js/run_charts.js")).merged([0, 9], [4, 3], [5], [2])"""
        assert opened.evaluate(curve, [[0, 1, 2, 300, 301], [5, 4, 3, 2, 1]]) == [
            [0, 1, 2, 151, 300, 301],
            [5, 4, 3, None, 2, 1],
        ]
        assert opened.evaluate(f"({held_out})().then((found) => found[1][1] === undefined)")


def test_the_way_in_is_one_command(chromium: Any, crowd: tuple[MadeUpRun, str]) -> None:
    _, url = crowd
    with page(chromium, PHONE) as opened:
        opened.goto(address_of(url, "join"))
        command = opened.locator(".big-command")
        command.wait_for(timeout=PATIENCE_MS)
        assert command.inner_text().endswith(LINK)
        opened.get_by_role("button", name="Copy").first.click()
        opened.get_by_role("button", name="Copied").wait_for(timeout=PATIENCE_MS)
        assert opened.problems == []


class Files(SimpleHTTPRequestHandler):
    """A web server that knows nothing of minga."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def test_a_page_on_any_web_server_names_its_own_address_and_the_link_behind_it(chromium: Any, tmp_path: Path) -> None:
    key = "cd" * 32
    old, new = (Link("ab" * 32, key, (EntryPoint(key, (f"192.168.1.7:{port}",)),)) for port in (1, 2))
    write_landing_page(tmp_path / "runs" / "j.html", RunSpec(name="a run"), old)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/runs/"
        with page(chromium, DESKTOP, "dark") as opened:
            opened.goto(f"{base}j.html#{new}")
            shown = opened.locator("pre").all_inner_texts()
            assert shown[0] == f"minga join {new}"
            assert f"minga[data] @ {base}minga-" in shown[1]
            assert str(old) not in "".join(shown)
            assert tmp_path.as_uri() not in "".join(shown)
            assert opened.problems == []
            assert opened.hosts == {f"127.0.0.1:{server.server_port}"}
        server.shutdown()


NAMELESS = """
[...document.querySelectorAll('button, a, input, [role=img], figure, nav, table')].filter((one) => {
  const named = one.getAttribute('aria-label') || one.textContent || one.placeholder;
  return !(named || one.querySelector('caption')?.textContent || '').trim();
}).map((one) => one.outerHTML.slice(0, 100))
"""
CONTRAST = """
(() => {
  const channel = (value) => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] > 0.9) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter((one) => {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) return false;
    if (!one.checkVisibility() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION'].includes(one.tagName)) return false;
    const [first, second] = [light(parts(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a);
    return (first + 0.05) / (second + 0.05) < 4.5;
  }).map((one) => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 40)}`);
})()
"""

TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_has_a_name_and_enough_contrast_and_nothing_hangs_over_the_side(
    chromium: Any, crowd: tuple[MadeUpRun, str], theme: str
) -> None:
    _, url = crowd
    with page(chromium, DESKTOP, theme) as opened:
        for name in PAGES:
            opened.goto(address_of(url, name))
            opened.locator("main .card:visible").first.wait_for(timeout=PATIENCE_MS)
            opened.wait_for_timeout(150)
            assert opened.evaluate(NAMELESS) == [], name
            assert opened.evaluate(CONTRAST) == [], name
            assert opened.evaluate(TOO_WIDE) <= 0, name
            width, height = PHONE
            opened.set_viewport_size({"width": width, "height": height})
            opened.wait_for_timeout(150)
            assert opened.evaluate(TOO_WIDE) <= 0, f"{name} on a phone"
            width, height = DESKTOP
            opened.set_viewport_size({"width": width, "height": height})
        assert opened.problems == []


def test_a_page_whose_stream_is_refused_says_so_and_comes_back_though_nothing_else_is_answered(
    chromium: Any, crowd: tuple[MadeUpRun, str]
) -> None:
    with page(chromium) as opened:
        opened.route("**/api/v1", lambda _: None)  # a proxy that holds it
        opened.route("**/api/v1/stream", lambda route: route.fulfill(status=502))
        opened.goto(crowd[1])
        opened.get_by_text("The dashboard does not answer.").wait_for(timeout=PATIENCE_MS)
        # Else those that are held would soon take all its connections.
        opened.wait_for_event("requestfailed", lambda each: each.url.endswith("/api/v1"), timeout=PATIENCE_MS)
        opened.unroute("**/api/v1/stream")
        opened.locator("#trouble").wait_for(state="hidden", timeout=PATIENCE_MS)


def test_a_dashboard_that_is_gone_is_said_and_one_that_is_back_is_shown(chromium: Any, tmp_path: Path) -> None:
    run = MadeUpRun(3)
    dashboard = run.serve(None)
    run.advance(10.0)
    url = dashboard.url
    try:
        with page(chromium) as opened:
            opened.goto(url)
            wait_for_text(opened, "#state", "training")
            dashboard.close()
            opened.get_by_text("The dashboard does not answer.").wait_for(timeout=PATIENCE_MS)
            run.gone = {2}
            port = urlsplit(url).port
            assert port is not None
            with ThreadingHTTPServer(("127.0.0.1", port), partial(Files, directory=tmp_path)) as another:
                threading.Thread(target=another.serve_forever, daemon=True).start()
                opened.get_by_text("No news: the server answered 404.").wait_for(timeout=PATIENCE_MS)
                another.shutdown()
            dashboard = run.serve(None, port=port)
            run.advance(5.0)
            opened.locator("#trouble").wait_for(state="hidden", timeout=PATIENCE_MS)
            wait_for_text(opened, "[data-tile=peers] dd > span", "2")
            run.step = 100_000
            run.advance(5.0)
            wait_for_text(opened, "[data-tile=step] .under", "the run is complete")
    finally:
        dashboard.close()
        run.close()
