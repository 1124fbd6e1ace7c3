"""uvicorn on a thread with an event loop of its own, beside the peer's and the training's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from minga.core.errors import ConfigurationError, LocalError
from minga.core.urls import reachable_hosts
from minga.dashboard.server.connection import BoundedConnection

MOST_CONNECTIONS: Final = 400
KEEP_ALIVE_S: Final = 5
SEND_BUFFER_BYTES: Final = 256 << 10
"""What the system holds for each viewer: with its usual megabytes a slow reader seems not to read for a long time."""
GOODBYE_S: Final = 1
"""Seconds that open requests have once the server ends."""


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
            raise ConfigurationError(
                f"the dashboard cannot listen at {host}:{port}: {error.strerror or error}"
            ) from error
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
