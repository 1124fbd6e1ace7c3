"""What web servers that strangers may reach have in common: how they listen, and what each connection may hold."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from minga.core.errors import ConfigurationError, reason_of
from minga.core.urls import is_loopback, network_of

MOST_OPEN: Final = 450
"""Connections; those beyond are closed at once."""
MOST_OF_ONE: Final = 250
"""Those of one network, so that one machine keeps nobody else out. It may be a proxy, by which all viewers of a
dashboard come; one on this machine may have all.
"""
LOOK_S: Final = 10.0
MOST_CONNECTIONS: Final = 400
KEEP_ALIVE_S: Final = 5
TLS_S: Final = 5.0
"""How long the other side may take to agree on TLS; before that no `BoundedConnection` knows of it."""
SEND_BUFFER_BYTES: Final = 256 << 10
"""What the system holds for each reader: with its usual megabytes a slow one seems not to read for a long time."""
GOODBYE_S: Final = 1
"""Seconds that open requests have once the server ends."""


def listen(host: str, port: int, failure: str) -> socket.socket:
    """A socket that listens. Raises `ConfigurationError`, which begins with `failure`, if the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=128)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # of its connections, too
    except OSError as error:
        raise ConfigurationError(f"{failure}: {reason_of(error)}; choose another port, or 0 for any") from error
    return listening


def configuration(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """How uvicorn serves `app`; `more` is what one server has of its own."""
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GOODBYE_S,
        **more,
    )


class BoundedServer(uvicorn.Server):
    """Serves at sockets that listen already, and waits for TLS only for some seconds, where uvicorn waits a minute."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup([])
        for each in sockets or ():
            tls = self.config.ssl
            serving = await asyncio.get_running_loop().create_server(
                self._connection, sock=each, ssl=tls, ssl_handshake_timeout=None if tls is None else TLS_S
            )
            self.servers.append(serving)

    def _connection(self) -> BoundedConnection:
        return BoundedConnection(self.config, self.server_state, self.lifespan.state)


class BoundedConnection(H11Protocol):
    """HTTP over one connection, as uvicorn has it, with the bounds that it lacks: strangers may connect.

    A connection over which nothing is asked, or whose other side does not read, costs its peer nothing, and here a
    place of few and a file, of which a training in this process needs some, too. So it is closed if it rests or is
    stuck in the same way at two looks that are `LOOK_S` apart.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._looking: asyncio.TimerHandle | None = None
        self.network = ""
        """The one from which the other side comes."""
        self._drained = 0
        """How often the other side has read what waited for it: a slow download goes on through many looks."""
        self._still: tuple[object, int] | None = None
        """The last request (None before the first one) and `_drained` at the look before, if it was still then."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take part, if there is room."""
        super().connection_made(transport)
        host = self.client[0] if self.client is not None else "localhost"
        self.network = network_of(host)
        of_one = sum(isinstance(each, BoundedConnection) and each.network == self.network for each in self.connections)
        if len(self.connections) > MOST_OPEN or (of_one > MOST_OF_ONE and not is_loopback(host)):
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
