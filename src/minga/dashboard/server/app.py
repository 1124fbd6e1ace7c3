"""What is where: the ASGI application of the dashboard."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from minga.core.errors import ClosedError
from minga.dashboard.server.answers import Answers
from minga.dashboard.server.guard import JOIN, STATIC, Guard, refusal
from minga.dashboard.server.join_answers import NOTEBOOK, JoinAnswers
from minga.dashboard.server.orders import OrderDesk
from minga.dashboard.server.pages import PAGES, Pages
from minga.dashboard.settings import DashboardSettings

API = "/api/v1"


def make_app(
    settings: DashboardSettings, answers: Answers, joining: JoinAnswers, orders: OrderDesk, pages: Pages
) -> ASGIApp:
    """The application; nothing of it answers before `Guard` let the request in."""
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
        Route(f"{API}/plan", answers.plan),
        Route(f"{API}/session", answers.session),
        Route(f"{API}/stream", answers.stream),
        Route(f"{API}/orders", orders.answer, methods=["POST"]),
        Route("/metrics", answers.metrics),
    ]
    handlers: dict[Any, Any] = {ClosedError: _peer_closed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), settings, joining.open_paths)


async def _peer_closed(_: Request, __: Exception) -> Response:
    """The answer once the peer that had to be asked is gone."""
    return refusal(503, "the peer behind this dashboard was closed")
