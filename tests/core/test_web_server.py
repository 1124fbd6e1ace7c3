"""What strangers' connections may hold of a web server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from minga.core import web_server
from minga.core.web_server import BoundedConnection, configuration


class Arriving(asyncio.Transport):
    """A connection from an address."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_one_network_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "MOST_OF_ONE", 2)
    asyncio.run(one_network_keeps_nobody_else_out())


async def one_network_keeps_nobody_else_out() -> None:
    config, state = configuration(_nothing), ServerState()
    config.load()

    def is_let_in(host: str) -> bool:
        arriving = Arriving(host)
        BoundedConnection(config, state, {}).connection_made(arriving)
        return not arriving.is_aborted

    assert [is_let_in("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert [is_let_in(f"2001:db8:0:{line}::{line}") for line in range(3)] == [True, True, False]
    assert all(is_let_in(host) for host in ("192.0.2.2", "2001:db8:0:100::1", *["127.0.0.1"] * 9, *["::1"] * 9))


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Serves nothing."""
