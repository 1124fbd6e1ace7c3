"""What only the thread that trains may do, on behalf of the event loop."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


class Wait(enum.Enum):
    """What the thread hears when it can do nothing but wait."""

    WAIT = "wait"


WAIT: Final = Wait.WAIT


@dataclass(frozen=True)
class ThreadTask:
    """Something that only the training thread may do; `done` is resolved, on the loop, with its return value."""

    name: str
    run: Callable[[], Any]
    done: asyncio.Future[Any]

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Resolve `done`, unless nobody waits for it any more; on the loop."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(result)
        else:
            self.done.set_exception(error)
