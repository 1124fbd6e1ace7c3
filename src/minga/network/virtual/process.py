"""The process of one simulated peer, which can be stopped, continued and killed.

Theory of operation. All simulated peers share one event loop. A context variable distinguishes their tasks and timers:
all tasks started from within `VirtualProcess.run` inherit it. A loop that knows of this (the one of `minga.simulation`)
sets the callbacks of a stopped process aside and runs them, late but in order, when it continues. In the same way a
process that got SIGSTOP and later SIGCONT finds its timers overdue.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


class VirtualProcess:
    """The tasks and timers of one simulated peer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = self.killed = False
        self.parked: list[Callable[[], None]] = []
        """Puts each callback that came due while stopped back into the loop."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Unfinished tasks, in the order of their creation."""
        self.context = contextvars.Context()
        self.context.run(CURRENT_PROCESS.set, self)

    def run(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this process; all that it starts belongs to the process, too."""
        # A copy, because tasks must not see each other's later changes to context variables.
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=self.context.copy())
        self.adopt(task)
        return task

    def adopt(self, task: asyncio.Task[Any], then: Callable[[asyncio.Task[Any]], None] | None = None) -> None:
        """Count a task among those that end when the process is killed; `then` is called when it is done."""
        if task not in self.tasks:
            self.tasks[task] = None
            task.add_done_callback(functools.partial(self._forget, then), context=NO_PROCESS)

    def stop(self) -> None:
        """Let nothing of this process run from now on."""
        self.stopped = True

    def resume(self) -> None:
        """Run what came due while stopped, in order, and go on."""
        self.stopped = False
        parked, self.parked = self.parked, []
        for requeue in parked:
            requeue()

    def kill(self) -> None:
        """Cancel every task, in order of creation.

        Their clean-up code still runs, but the network of a killed host lets nothing out.
        """
        self.killed = True
        self.resume()
        for task in list(self.tasks):
            task.cancel()

    def _forget(self, then: Callable[[asyncio.Task[Any]], None] | None, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        if then is not None:
            then(task)
        if self.killed and not task.cancelled():
            task.exception()  # a clean-up that fails after death is no mistake, and not reported


CURRENT_PROCESS: contextvars.ContextVar[VirtualProcess | None] = contextvars.ContextVar(
    "minga_virtual_process", default=None
)
"""The process that the running code belongs to; None for the simulation itself."""

NO_PROCESS: Final = contextvars.Context()
"""For callbacks that belong to the simulation, although a process asks for them."""
