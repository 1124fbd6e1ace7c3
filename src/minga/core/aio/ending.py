"""The end of tasks that are not needed any more."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all are over, which costs no turn of the loop where they are already.

    What they raise is dropped, also by those that were over: a caller that needs it has asked for it before.
    """
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # or the loop would complain that nobody asked
        task.cancel()
    if left := [task for task in tasks if not task.done()]:
        await asyncio.gather(*left, return_exceptions=True)
