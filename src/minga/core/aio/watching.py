"""A look at something now and then while something else is under way, without a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def watching(period_s: float, look: Callable[[], bool]) -> Iterator[None]:
    """Inside, call `look` in the next turn of the loop and every `period_s` seconds, until it has seen what it looks
    for. What it raises goes to the loop's exception handler, and ends the looks.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle

    def turn() -> None:
        nonlocal timer
        if not look():
            timer = loop.call_later(period_s, turn)

    timer = loop.call_soon(turn)
    try:
        yield
    finally:
        timer.cancel()
