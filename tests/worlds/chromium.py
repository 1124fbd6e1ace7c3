"""The system's Chromium, driven by playwright, for the tests of the dashboard and its pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = (1280, 900), (390, 844)


def why_not() -> str | None:
    """Why there is no browser here; None if there is one."""
    if not CHROMIUM.exists():
        return f"there is no {CHROMIUM}: apt-get install --no-install-recommends chromium"
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "playwright is not installed"
    return None


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless browser of playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        try:
            yield launched
        finally:
            launched.close()


@contextlib.contextmanager
def page(launched: Any, size: tuple[int, int] = DESKTOP, theme: str = "light") -> Iterator[Any]:
    """A page of its own, `size` pixels wide and high. What goes wrong in it is in `page.problems`."""
    context = launched.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=theme, locale="en-GB", timezone_id="UTC"
    )
    opened = context.new_page()
    opened.problems = problems = []
    opened.hosts = hosts = set()
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    try:
        yield opened
    finally:
        context.close()
