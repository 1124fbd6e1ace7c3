"""The API, version 1: `GET /api/v1/…` answers in JSON; docs/dashboard.md describes it.

What changed goes to all viewers at once, as Server-Sent Events. Every message repeats the ends of all curves and
journals, so a viewer that was slow takes the newest message only, and sees by the numbers in it whether it has to fetch
the whole again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from minga.dashboard.live_run import LiveRun
from minga.dashboard.model.documents import VERSION
from minga.dashboard.server.guard import refusal
from minga.dashboard.server.metrics import CONTENT_TYPE, metrics_text, registry_of

MOST_VIEWERS: Final = 200
HEARTBEAT_S: Final = 15.0
WHAT: Final = {
    "run": "the page of the run: figures, curves, journals",
    "peers": "the living peers",
    "peers/PEER": "one peer: figures, contribution, journals",
    "leaderboard": "what each person and peer has given",
    "join": "how to take part",
    "stream": "what changes, as Server-Sent Events",
}


class Answers:
    """Answers about `run`."""

    def __init__(self, run: LiveRun, feed: LiveFeed) -> None:
        self._run, self._feed = run, feed
        self._registry: CollectorRegistry = registry_of(run)

    async def index(self, _: Request) -> Response:
        """What there is, and by which version of minga."""
        answer = {"api": VERSION, "version": metadata.version("minga"), "endpoints": WHAT}
        return json_answer(msgspec.json.encode(answer))

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
        return refusal(404, "nothing is known of this peer") if found is None else json_answer(found)

    async def leaderboard(self, _: Request) -> Response:
        """What each person and peer has given."""
        return _known(self._run.leaderboard())

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
    return refusal(503, "the run was not seen yet") if data is None else json_answer(data)


def json_answer(data: bytes) -> Response:
    """JSON that is good for this moment."""
    return Response(data, headers={"Content-Type": "application/json", "Cache-Control": "no-store"})


class LiveFeed:
    """On one event loop. `viewers` counts the open streams."""

    def __init__(self) -> None:
        self.viewers = 0
        self._message: bytes | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether no more viewers can follow."""
        return self.viewers >= MOST_VIEWERS

    def publish(self, message: bytes) -> None:
        """Send one JSON document, which has no line breaks, to all viewers."""
        self._message = b"data: " + message + b"\n\n"
        self._wake()

    def close(self) -> None:
        """End all streams, so that the server can end."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """The messages from now on."""
        self.viewers += 1
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                news = self._news
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if not self._closed and self._message is not None:
                    yield self._message
        finally:
            self.viewers -= 1

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
