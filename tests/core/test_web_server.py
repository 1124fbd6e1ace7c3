"""What strangers' connections may hold of a web server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn.server import ServerState

from minga.core import web_server
from minga.core.web_server import BoundedConnection, configuration
from minga.dashboard.server.answers import MOST_VIEWERS


def door() -> Callable[[str], bool]:
    """Says of connections that arrive, one after the other and each from a host, whether they are let in."""
    config, state = configuration(_nothing), ServerState()
    config.load()

    def is_let_in(host: str) -> bool:
        arriving = Arriving(host)
        BoundedConnection(config, state, {}).connection_made(arriving)
        return not arriving.is_aborted

    return is_let_in


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


def test_a_proxy_elsewhere_brings_all_viewers_of_a_dashboard_and_their_pages() -> None:
    asyncio.run(one_proxy_brings_all())


async def one_proxy_brings_all() -> None:
    is_let_in = door()
    assert all(is_let_in("192.0.2.1") for _ in range(MOST_VIEWERS + 20))


async def one_network_keeps_nobody_else_out() -> None:
    is_let_in = door()
    assert [is_let_in("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert [is_let_in(f"2001:db8:0:{line}::{line}") for line in range(3)] == [True, True, False]
    assert all(is_let_in(host) for host in ("192.0.2.2", "2001:db8:0:100::1", *["127.0.0.1"] * 9, *["::1"] * 9))


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Serves nothing."""
