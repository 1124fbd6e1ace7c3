"""Arithmetic beside the event loop, which has to answer others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function on a worker thread; on virtual time at once."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*args, **options))
