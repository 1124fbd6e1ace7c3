"""Several attempts at once, of which one success is enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from minga.core.aio.ending import end

T = TypeVar("T")


@asynccontextmanager
async def racing(attempts: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[Iterator[asyncio.Future[T]]]:
    """Begin all attempts; the body awaits their outcomes in the order in which they come, until it has enough.

    What has not ended by then is cancelled, and over when the block is left.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(attempt) for attempt in attempts]
    try:
        yield asyncio.as_completed(tasks)
    finally:
        await end(*tasks)
