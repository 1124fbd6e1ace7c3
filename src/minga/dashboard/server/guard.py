"""Lets in requests that name this server and show what it asks for, and adds the headers that protect its pages."""

from __future__ import annotations

import hmac
from collections.abc import Set
from html import escape
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minga.dashboard.settings import DashboardSettings

POLICY: Final = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
JOIN: Final = "/join"
"""The page for newcomers."""
STATIC: Final = "/static/"
"""Below this lie files of the package, which every viewer may have."""
COOKIE_S: Final = 30 * 86_400
MOST_TOKEN_LETTERS: Final = 200


class Guard:
    """ASGI middleware. It sets `scope["reader"]`: whether the viewer may see the pages about the run.

    `open_paths` need no token.
    """

    def __init__(self, app: ASGIApp, settings: DashboardSettings, open_paths: Set[str]) -> None:
        self._app, self._settings, self._open_paths = app, settings, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        await self._answer(scope)(scope, receive, _protected(send))

    def _answer(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if not self._settings.accepts_host(headers.get("host", "")):
            return self._refused(headers, 421, "this server has another name; open it by its address")
        if (shown := self._in_address(scope)) is not None:
            return self._entered(scope, headers, shown)
        token = _bearer(headers) or _cookie(headers, self._cookie_name(scope))
        may_read = not self._settings.needs_token or _equal(token, self._settings.read_token)
        scope["reader"] = may_read
        is_open = scope["path"] in self._open_paths or scope["path"].startswith(STATIC)
        if not may_read and not (is_open and scope["method"] in ("GET", "HEAD")):
            return self._refused(headers, 401, _FOR_VIEWERS)
        if scope["method"] not in ("GET", "HEAD"):
            return refusal(405, "a dashboard is only read")
        return self._app

    def _in_address(self, scope: Scope) -> str | None:
        found = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        return found[0][:MOST_TOKEN_LETTERS] if found else None

    def _refused(self, headers: Headers, status: int, why: str) -> Response:
        """A refusal: as a page for people, with the way for newcomers if that is open, and in JSON for programs."""
        if "text/html" not in headers.get("accept", ""):
            return refusal(status, why)
        way = _WAY_IN if status == 401 and JOIN in self._open_paths else ""
        return HTMLResponse(_PAGE.format(why=escape(f"{why[0].upper()}{why[1:]}."), way=way), status)

    def _entered(self, scope: Scope, headers: Headers, token: str) -> Response:
        """A good token moves from the address, which people copy, into a cookie; the way leads to no other server."""
        if not _equal(token, self._settings.read_token):
            return self._refused(
                headers, 401, "this token is not, or no longer, valid: ask the organiser for a new one"
            )
        response = RedirectResponse("/" + scope["path"].lstrip("/"), status_code=303)
        name = self._cookie_name(scope)
        is_secure = self._settings.url is not None and self._settings.url.startswith("https:")
        response.set_cookie(name, token, max_age=COOKIE_S, httponly=True, samesite="strict", secure=is_secure, path="/")
        return response

    @staticmethod
    def _cookie_name(scope: Scope) -> str:
        """Cookies of one host are shared by its ports, and several dashboards may run there."""
        return f"minga_{(scope.get('server') or ('', 0))[1]}"


_FOR_VIEWERS: Final = (
    "the figures of this run are for viewers to whom the organiser gave the address with a token, as the dashboard's "
    "command printed it"
)
_WAY_IN: Final = f'<p>To take part in the run you need none:</p><p><a class="button" href="{JOIN}">Take part</a></p>'
_PAGE: Final = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>minga</title>\n'
    '<link rel="stylesheet" href="/static/css/theme.css">\n<link rel="stylesheet" href="/static/css/layout.css">\n'
    '<link rel="stylesheet" href="/static/css/parts.css">\n<script src="/static/js/theme.js"></script>\n</head>\n'
    '<body>\n<main><div class="card"><h1>minga</h1><p>{why}</p>{way}</div></main>\n</body>\n</html>\n'
)


def refusal(status: int, why: str) -> JSONResponse:
    """An error as the API says it."""
    return JSONResponse({"error": why}, status_code=status)


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers, name: str) -> str:
    """Read by hand: `http.cookies` takes time in the square of what a stranger sends, before Python 3.11.10."""
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value.strip().strip('"') for key, _, value in pairs if key.strip() == name), "")


def _equal(token: str, wanted: str) -> bool:
    return hmac.compare_digest(token.encode(), wanted.encode())


def _protected(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)  # the page for newcomers has a policy of its own
        await send(message)

    return with_headers
