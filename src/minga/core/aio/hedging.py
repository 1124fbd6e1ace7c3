"""Several attempts at once, of which one success is enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def racing(attempts: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[Iterator[asyncio.Future[T]]]:
    """Begin all attempts; the body awaits their outcomes in the order in which they come, until it has enough.

    What has not ended by then is cancelled, and over when the block is left.
    """
    tasks = [asyncio.ensure_future(attempt) for attempt in attempts]
    try:
        yield asyncio.as_completed(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
