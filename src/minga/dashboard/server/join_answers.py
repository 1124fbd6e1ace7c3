"""What a dashboard gives to newcomers: the page that says how to take part, a notebook, and the wheel of minga."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final, Generic, TypeVar

import msgspec
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from minga.core.files import in_pieces
from minga.core.urls import is_loopback
from minga.core.wheel import Wheel
from minga.dashboard.joining import JoinFacts, JoinPage, Source, policy
from minga.dashboard.live_run import LiveRun
from minga.dashboard.model.documents import VERSION
from minga.dashboard.server.answers import json_answer
from minga.dashboard.server.guard import JOIN, refusal
from minga.dashboard.settings import DEFAULT_PORT, DashboardSettings
from minga.notebook.notebook_file import joining_notebook
from minga.training.peer import Peer
from minga.training.status.run_status import present_spec

T = TypeVar("T")

PERIOD_S: Final = 10.0
"""What has to be asked of the peer is made at most this often."""

NOTEBOOK: Final = "/join.ipynb"
_PAGES: Final = (("/", "Run"), ("/peers", "Peers"), ("/leaderboard", "Leaderboard"))
_THIS_MACHINE_ONLY: Final = (
    "Only this machine reaches this page so far. For others the dashboard has to listen on more than this machine: "
    f"minga host --dashboard-listen 0.0.0.0:{DEFAULT_PORT}, or minga dashboard --listen 0.0.0.0:{DEFAULT_PORT}."
)


class JoinAnswers:
    """Answers for newcomers to the run of `peer`. `urls` are the addresses of the server, `wheel` what it hands out."""

    def __init__(
        self, peer: Peer, run: LiveRun, settings: DashboardSettings, urls: Sequence[str], wheel: Wheel | None
    ) -> None:
        self._spec, self._settings, self._urls, self._wheel = peer.spec, settings, urls, wheel
        self._source = peer.spec.network.source_url or wheel

        def facts() -> JoinFacts:
            session = peer.session
            present = peer.on_loop(lambda: present_spec(session.board, peer.spec, session.ledger))
            return JoinFacts.of(present, peer.link, None if run.look is None else run.look.status)

        self._facts = Seldom(facts)
        self._notebook = Seldom(lambda: self._notebook_for(facts().notebook_link))

    @property
    def wheel_path(self) -> str | None:
        """Where the wheel is, if this dashboard hands one out."""
        return None if self._wheel is None else f"/{self._wheel.name}"

    @property
    def open_paths(self) -> frozenset[str]:
        """What needs no token of a viewer: the wheel, which is no secret, and in an open run the way in."""
        paths = {self.wheel_path} if self.wheel_path is not None else set()
        return frozenset(paths | ({JOIN, NOTEBOOK} if self._spec.security.admission == "open" else set()))

    async def page(self, request: Request) -> Response:
        """The page; with the way to the other pages for viewers that may read them."""
        facts, base = await self._facts.get(), self._base(request.url)
        page = JoinPage(
            facts,
            Source.of(self._spec, base, self._wheel),
            address=None if self._settings.is_local else f"{base}{JOIN[1:]}",
            notebook=NOTEBOOK if self._source is not None and facts.notebook_link is not None else None,
            is_as_signed=self._wheel is not None and self._spec.wheel == self._wheel.reference,
            pages=_PAGES if request.scope.get("reader") else (),
            caution=_THIS_MACHINE_ONLY if self._settings.is_local else "",
        )
        return HTMLResponse(page.html(), headers={"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'"})

    async def facts(self, request: Request) -> Response:
        """The same facts, as JSON."""
        facts, source = await self._facts.get(), Source.of(self._spec, self._base(request.url), self._wheel)
        answer = {"api": VERSION, **asdict(facts), "source": None if source is None else f"{source.base}{source.name}"}
        return json_answer(msgspec.json.encode(answer))

    async def notebook(self, _: Request) -> Response:
        """A notebook that joins the run."""
        made = await self._notebook.get()
        if made is None:
            return refusal(404, "no notebook can join this run by itself")
        return _streamed(made, "application/x-ipynb+json", "no-store")

    def _notebook_for(self, link: str | None) -> bytes | None:
        if link is None or self._source is None:
            return None
        return joining_notebook(link, self._source).encode()

    async def wheel(self, _: Request) -> Response:
        """The wheel."""
        if self._wheel is None:
            return refusal(404, "this dashboard hands out no copy of minga")
        return _streamed(self._wheel.data, "application/octet-stream", "no-cache")

    def _base(self, asked: URL) -> str:
        """The address of this server for the commands: that by which the viewer came, if others can come by it, too."""
        if self._settings.url is not None:
            return f"{self._settings.url.rstrip('/')}/"
        came_locally = is_loopback(asked.hostname or "") and not self._settings.is_local
        return f"{self._urls[0]}/" if came_locally else f"http://{asked.netloc}/"


def _streamed(data: bytes, kind: str, cache: str) -> Response:
    headers = {"Content-Length": str(len(data)), "Cache-Control": cache}
    return StreamingResponse(in_pieces(data), media_type=kind, headers=headers)


class Seldom(Generic[T]):
    """A value that `make` makes on a thread beside the server's, since that blocks."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock = make, asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """The value, which may be `PERIOD_S` old. Raises what `make` raises."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._made is None or now_s - self._made[0] > PERIOD_S:
                value = await asyncio.to_thread(self._make)
                self._made = asyncio.get_running_loop().time(), value
            return self._made[1]
