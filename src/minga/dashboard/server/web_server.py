"""The web server: what is where, the files of the pages, and uvicorn on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from minga.core.errors import ClosedError, LocalError
from minga.core.urls import reachable_hosts
from minga.core.web_server import configuration, listen
from minga.dashboard.server.answers import Answers
from minga.dashboard.server.guard import JOIN, STATIC, Guard, refusal
from minga.dashboard.server.join_answers import NOTEBOOK, JoinAnswers
from minga.dashboard.settings import DashboardSettings

API: Final = "/api/v1"
FOLDER: Final = Path(__file__).parent.parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGES: Final = ("/", "/peers", "/peers/{peer}", "/leaderboard")
"""The addresses of pages; all are one file, whose scripts look at the address."""


class WebServer:
    """Listens from its making on; `run` serves on the calling thread until `stop`, which any thread may call.

    Raises `ConfigurationError` if the address cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = listen(host, port, f"the dashboard cannot listen at {host}:{port}")
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_end: Callable[[], None] = lambda: None
        self._started = threading.Event()
        self._ended = threading.Event()

    @property
    def urls(self) -> list[str]:
        """The addresses by which viewers reach it, the best one first."""
        host, port = self._socket.getsockname()[:2]
        return [f"http://{each}:{port}" for each in reachable_hosts(host)]

    def run(
        self, make: Callable[[], ASGIApp], beside: Callable[[], Coroutine[Any, Any, None]], at_end: Callable[[], None]
    ) -> None:
        """Serve what `make` makes on the loop; `beside` runs on it meanwhile, `at_end` is called when it ends."""
        self._at_end = at_end
        try:
            asyncio.run(self._serve(make, beside))
        finally:
            self._ended.set()
            self._started.set()
            self._socket.close()

    def on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the server's loop, soon; nothing once it has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(function, *arguments)

    def wait_until_started(self, seconds: float = 10.0) -> None:
        """Block until requests are answered. Raises `LocalError` if `run` failed, or takes longer than `seconds`."""
        if not self._started.wait(seconds) or self._ended.is_set():
            raise LocalError("the dashboard's server could not be started")

    def stop(self) -> None:
        """Let `run` end; open requests have `GOODBYE_S` seconds. Before `run` it gives the address back."""
        if self._loop is None:
            self._socket.close()

        def end() -> None:
            self._at_end()
            if self._server is not None:
                self._server.should_exit = True

        self.on_loop(end)

    async def _serve(self, make: Callable[[], ASGIApp], beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.get_running_loop()
        # Bad requests of strangers are no lines for the host's terminal.
        config = configuration(make(), log_level="error", proxy_headers=False)
        self._server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(beside())
            self._started.set()
            await self._server.serve(sockets=[self._socket])
            other.cancel()


def make_app(settings: DashboardSettings, answers: Answers, joining: JoinAnswers) -> ASGIApp:
    """The application; nothing of it answers before `Guard` let the request in."""
    pages = Pages()
    # Only what readers alone may ask for, since it takes the host's processor; a low level is enough for numbers.
    packed = [Middleware(GZipMiddleware, compresslevel=1)]
    routes = [
        *(Route(path, pages.page) for path in PAGES),
        Route(JOIN, joining.page),
        Route(NOTEBOOK, joining.notebook),
        *([] if joining.wheel_path is None else [Route(joining.wheel_path, joining.wheel)]),
        Route(f"{STATIC}{{name:path}}", pages.file),
        Route(API, answers.index),
        Route(f"{API}/run", answers.run, middleware=packed),
        Route(f"{API}/peers", answers.peers, middleware=packed),
        Route(f"{API}/peers/{{peer}}", answers.peer),
        Route(f"{API}/leaderboard", answers.leaderboard, middleware=packed),
        Route(f"{API}/join", joining.facts),
        Route(f"{API}/stream", answers.stream),
        Route("/metrics", answers.metrics),
    ]
    handlers: dict[Any, Any] = {ClosedError: _peer_closed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), settings, joining.open_paths)


async def _peer_closed(_: Request, __: Exception) -> Response:
    """The answer once the peer that had to be asked is gone."""
    return refusal(503, "the peer behind this dashboard was closed")


# ---- the files of the pages: HTML, style, scripts and the vendored uPlot, read once


@dataclass(frozen=True)
class _File:
    data: bytes
    type: str
    etag: str


class Pages:
    """Answers requests for files; only files that were there at the start are served."""

    def __init__(self, folder: Path = FOLDER) -> None:
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES)
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in found}

    async def page(self, request: Request) -> Response:
        """The page, whichever its address is."""
        return self._answer(request, "index.html")

    async def file(self, request: Request) -> Response:
        """A file that the page loads."""
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return refusal(404, "no such file")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers={**headers, "Content-Type": file.type})


def _read(path: Path) -> _File:
    data = path.read_bytes()
    return _File(data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:20]}"')
