"""What is where: the ASGI application of the dashboard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from minga.dashboard.server.answers import Answers
from minga.dashboard.server.guard import Guard
from minga.dashboard.server.orders import OrderDesk
from minga.dashboard.server.pages import PAGES, Pages
from minga.dashboard.settings import DashboardSettings

API = "/api/v1"


def make_app(settings: DashboardSettings, answers: Answers, orders: OrderDesk, pages: Pages) -> ASGIApp:
    """The application; nothing of it answers before `Guard` let the request in."""
    routes = [
        *(Route(path, pages.page) for path in PAGES),
        Route("/static/{name:path}", pages.file),
        Route(API, answers.index),
        Route(f"{API}/run", answers.run),
        Route(f"{API}/peers", answers.peers),
        Route(f"{API}/peers/{{peer}}", answers.peer),
        Route(f"{API}/leaderboard", answers.leaderboard),
        Route(f"{API}/join", answers.slow),
        Route(f"{API}/plan", answers.slow),
        Route(f"{API}/session", answers.session),
        Route(f"{API}/stream", answers.stream),
        Route(f"{API}/orders", orders.answer, methods=["POST"]),
        Route("/metrics", answers.metrics),
    ]
    return Guard(Starlette(routes=routes), settings)
