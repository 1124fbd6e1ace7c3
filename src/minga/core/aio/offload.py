"""Work on tensors beside the event loop, unless there is so little of it that the way to another thread costs more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MOST_BYTES_HERE = 128 << 10
"""Work on so many bytes takes well under a millisecond; to wake a thread and to be woken by it takes about a tenth."""


async def offload(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Do `work`, which goes over `size` bytes a few times, on another thread if these are many."""
    if size <= MOST_BYTES_HERE:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
