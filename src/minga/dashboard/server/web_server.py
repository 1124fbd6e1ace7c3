"""The web server: what is where, the files of the pages, and uvicorn on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from minga.core.errors import ClosedError, ConfigurationError, LocalError, reason_of
from minga.core.urls import reachable_hosts
from minga.dashboard.server.answers import Answers
from minga.dashboard.server.guard import JOIN, STATIC, Guard, refusal
from minga.dashboard.server.join_answers import NOTEBOOK, JoinAnswers
from minga.dashboard.settings import DashboardSettings

API: Final = "/api/v1"
MOST_OPEN: Final = 450
"""Connections; those beyond are closed at once."""
LOOK_S: Final = 10.0
MOST_CONNECTIONS: Final = 400
KEEP_ALIVE_S: Final = 5
SEND_BUFFER_BYTES: Final = 256 << 10
"""What the system holds for each viewer: with its usual megabytes a slow reader seems not to read for a long time."""
GOODBYE_S: Final = 1
"""Seconds that open requests have once the server ends."""

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
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # of its connections, too
        except OSError as error:
            raise ConfigurationError(f"the dashboard cannot listen at {host}:{port}: {reason_of(error)}") from error
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
        config = uvicorn.Config(
            make(),
            http=BoundedConnection,
            log_config=None,
            log_level="error",  # bad requests of strangers are no lines for the host's terminal
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        self._server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(beside())
            self._started.set()
            await self._server.serve(sockets=[self._socket])
            other.cancel()


class BoundedConnection(H11Protocol):
    """HTTP over one connection, as uvicorn has it, with the bounds that it lacks: strangers may connect to a dashboard.

    A connection over which nothing is asked, or whose other side does not read, costs its peer nothing and a file here,
    of which the training of this process needs some, too. So it is closed if it rests or is stuck in the same way at
    two looks that are `LOOK_S` apart.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._looking: asyncio.TimerHandle | None = None
        self._drained = 0
        """How often the other side has read what waited for it: a slow download goes on through many looks."""
        self._still: tuple[object, int] | None = None
        """The last request (None before the first one) and `_drained` at the look before, if it was still then."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take part, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > MOST_OPEN:
            transport.abort()
        else:
            self._looking = self.loop.call_later(LOOK_S, self._look)

    def resume_writing(self) -> None:
        """The other side has read."""
        self._drained += 1
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        rests = self.cycle is None or self.cycle.response_complete
        if not (rests or self.flow.write_paused):
            self._still = None
        elif self._still == (self.cycle, self._drained):
            self.transport.abort()
            return
        else:
            self._still = self.cycle, self._drained
        self._looking = self.loop.call_later(LOOK_S, self._look)


def make_app(settings: DashboardSettings, answers: Answers, joining: JoinAnswers) -> ASGIApp:
    """The application; nothing of it answers before `Guard` let the request in."""
    pages = Pages()
    routes = [
        *(Route(path, pages.page) for path in PAGES),
        Route(JOIN, joining.page),
        Route(NOTEBOOK, joining.notebook),
        *([] if joining.wheel_path is None else [Route(joining.wheel_path, joining.wheel)]),
        Route(f"{STATIC}{{name:path}}", pages.file),
        Route(API, answers.index),
        Route(f"{API}/run", answers.run),
        Route(f"{API}/peers", answers.peers),
        Route(f"{API}/peers/{{peer}}", answers.peer),
        Route(f"{API}/leaderboard", answers.leaderboard),
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
