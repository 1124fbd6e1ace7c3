"""Asking several peers for one thing that any of them may have."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from minga.core.aio.ending import end
from minga.core.errors import RemoteError

FIRST_PAUSE_S = 0.5

T = TypeVar("T")


async def first_in_turn(
    asks: Iterable[Callable[[], Coroutine[Any, Any, T]]],
    *,
    longest_pause_s: float = math.inf,
    is_coming: Callable[[], bool] = lambda: False,
) -> T | None:
    """The first answer; None if all failed with `RemoteError` or a timeout.

    The sources are asked one after the other, the next one when the last failed or takes long, unless the answer
    `is_coming`. The pauses double up to the longest: a source that never answers costs little time, and over a slow
    link only few sources send the same bytes.
    """
    loop, left, pause_s = asyncio.get_running_loop(), deque(asks), FIRST_PAUSE_S
    asked = set[asyncio.Task[T]]()
    try:
        while left or asked:
            if left and not (asked and is_coming()):
                asked.add(loop.create_task(left.popleft()()))
            done, asked = await asyncio.wait(
                asked, timeout=pause_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            pause_s = pause_s if done else min(longest_pause_s, 2 * pause_s)
            for task in done:
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, RemoteError | TimeoutError):
                    raise error
    finally:
        await end(*asked)
    return None
