"""The API, version 1: `GET /api/v1/…` answers in JSON; docs/dashboard.md describes it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from minga.core.errors import ClosedError
from minga.dashboard.live_run import LiveRun
from minga.dashboard.model.documents import VERSION
from minga.dashboard.server.guard import refusal
from minga.dashboard.server.live_feed import LiveFeed
from minga.dashboard.server.metrics import CONTENT_TYPE, metrics_text, registry_of

WHAT: Final = {
    "run": "the page of the run: figures, curves, journals",
    "peers": "the living peers",
    "peers/PEER": "one peer: figures, contribution, journals",
    "leaderboard": "what each person and peer has given",
    "join": "how to take part",
    "plan": "the plan of the next rounds, what they wait for, what would help",
    "stream": "what changes, as Server-Sent Events",
    "session": "what this viewer may do",
    "orders": "POST: pause, resume, ban or amend, for the organiser",
}
SLOW_PERIOD_S: Final = 10.0
"""Answers that ask the peer itself are made at most this often."""

Slow = Callable[[], dict[str, Any]]


class Answers:
    """Answers from `run`; `slow` makes those by name that need the peer, each on a thread beside the server's."""

    def __init__(self, run: LiveRun, feed: LiveFeed, slow: dict[str, Slow], *, has_organiser: bool) -> None:
        self._run, self._feed, self._slow, self._has_organiser = run, feed, slow, has_organiser
        self._registry: CollectorRegistry = registry_of(run)
        self._made: dict[str, tuple[float, bytes]] = {}
        self._locks = {name: asyncio.Lock() for name in slow}

    async def index(self, _: Request) -> Response:
        """What there is."""
        return _json(msgspec.json.encode({"api": VERSION, "endpoints": WHAT}))

    async def run(self, _: Request) -> Response:
        """The page of the run."""
        return _known(self._run.run())

    async def peers(self, _: Request) -> Response:
        """The table of peers."""
        return _known(self._run.peers())

    async def peer(self, request: Request) -> Response:
        """One peer."""
        peer_id = request.path_params["peer"]
        if not re.fullmatch("[0-9a-f]{64}", peer_id):
            return refusal(404, "a peer id has 64 lower-case hexadecimal digits")
        found = self._run.peer(peer_id)
        return refusal(404, "nothing is known of this peer") if found is None else _json(found)

    async def leaderboard(self, _: Request) -> Response:
        """What each person and peer has given."""
        return _known(self._run.leaderboard())

    async def session(self, request: Request) -> Response:
        """What this viewer may do."""
        may_order = self._has_organiser and bool(request.scope.get("organiser"))
        answer = {"api": VERSION, "version": metadata.version("minga"), "may_order": may_order}
        return _json(msgspec.json.encode(answer))

    async def slow(self, request: Request) -> Response:
        """An answer that needs the peer: the name is the last part of the address."""
        name = request.url.path.rsplit("/", 1)[-1]
        async with self._locks[name]:
            made_s, data = self._made.get(name, (0.0, b""))
            now_s = asyncio.get_running_loop().time()
            if not data or now_s - made_s > SLOW_PERIOD_S:
                try:
                    data = msgspec.json.encode(await asyncio.to_thread(self._slow[name]))
                except ClosedError:
                    return refusal(503, "the peer behind this dashboard was closed")
                self._made[name] = asyncio.get_running_loop().time(), data
        return _json(data)

    async def stream(self, _: Request) -> Response:
        """What changes."""
        if self._feed.is_full:
            return refusal(503, "too many viewers follow this dashboard")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._feed.follow(), media_type="text/event-stream", headers=headers)

    async def metrics(self, _: Request) -> Response:
        """The figures for Prometheus."""
        return Response(metrics_text(self._registry), headers={"Content-Type": CONTENT_TYPE})


def _known(data: bytes | None) -> Response:
    return refusal(503, "the run was not seen yet") if data is None else _json(data)


def _json(data: bytes) -> Response:
    return Response(data, headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
