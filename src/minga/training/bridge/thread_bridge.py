"""What the event loop asks of the thread that trains, and how each hears of the other: both ports rest on it.

Only that thread may touch the model. It comes by at its boundaries (`poll`), takes the work that lies there, and the
loop's futures tell what came of it. When the thread fails, or the peer ends, everybody who waits hears why.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from minga.core.aio.signal import Signal
from minga.core.errors import ClosedError, ConfigurationError, MingaError
from minga.training.bridge.loop_notifier import LoopNotifier
from minga.training.bridge.thread_task import ThreadTask


class TrainingThread:
    """One training thread as the loop sees it. `condition` guards what both sides touch; its `lock` alone is taken with
    each micro-batch, which costs a fifth.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._notifier = loop, LoopNotifier(loop)
        self.changed = self._notifier.changed
        self.woken = Signal()  # for trainers that are coroutines on the same loop
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        self.closed: BaseException | None = None
        self.at_boundary: Callable[[], None] | None = None
        """Called by the training thread in each `poll` that has no work for it, when the model is at rest."""
        self.on_micro_batch: Callable[[int, float | None, bool], None] = lambda _samples, _loss, _is_taken: None
        """Called with the samples and the loss of each micro-batch when it is known whether it counts, and with that;
        on any thread, on one at a time.
        """
        self._work: deque[ThreadTask] = deque()
        self._held_s, self._stands_since_s = 0.0, math.inf

    # ---- the training thread

    def finish(self, work: ThreadTask) -> None:
        """Do a piece of work and report its result to the loop."""
        try:
            result = work.run()
        except BaseException as error:  # an interrupt too: the model may be half-way between two steps
            why = f"the model could not {work.name} on the thread that trains: {type(error).__name__}: {error}"
            failure = error if isinstance(error, MingaError) else ClosedError(why)
            self._notifier.call(work.settle, None, failure)
            self._end(failure)
            raise
        self._notifier.call(work.settle, result, None)

    # ---- the loop

    def request(self, name: str, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have the training thread run something at its next boundary; the future tells the result.

        `run` may touch the replica and the port. What depends on anything of the loop is decided before.
        """
        work = ThreadTask(name, run, self._loop.create_future())
        with self.condition:
            if self.closed is not None:
                work.done.set_exception(self.closed)
                return work.done
            self._work.append(work)
        self._wake()
        return work.done

    def held_s(self) -> float:
        """Seconds that the thread stood for others since this was asked last: it waited, or did work."""
        with self.lock:
            self._stand(self._stands_since_s < math.inf)
            held_s, self._held_s = self._held_s, 0.0
            return held_s

    async def accept(self, check: Callable[[], None]) -> None:
        """Have the training thread run `check`; raise here, not there, what that refuses by a `MingaError`."""

        def refusal() -> MingaError | None:
            try:
                check()
            except MingaError as error:
                return error
            return None

        refused: MingaError | None = await self.request("check", refusal)
        if refused is not None:
            raise refused

    def close(self, error: BaseException) -> None:
        """Let the training thread go: its next `poll` raises `error`."""
        self._end(error)
        self._wake()

    # ---- for the ports

    def _next_work(self) -> ThreadTask | None:
        """Under the condition: the work that lies there. Raises what closed the port."""
        if isinstance(self.closed, ConfigurationError):
            raise self.closed.with_traceback(None)  # its cause is this program: the way to here says nothing
        if self.closed is not None:
            raise self.closed
        return self._work.popleft() if self._work else None

    def _stand(self, stands: bool) -> None:
        """Under the condition: from now on the thread stands for others, or goes on."""
        if stands or self._stands_since_s < math.inf:
            now = self._loop.time()
            self._held_s += max(0.0, now - self._stands_since_s)
            self._stands_since_s = now if stands else math.inf

    def _waiting(self) -> list[asyncio.Future[Any]]:
        """Under the condition: everybody on the loop who waits for the thread; from then on nobody does."""
        waiting = [work.done for work in self._work]
        self._work.clear()
        return waiting

    def _end(self, error: BaseException) -> None:
        with self.condition:
            closed = self.closed = self.closed or error
            waiting = self._waiting()
        for done in waiting:
            self._notifier.call(_fail, done, closed)

    def _wake(self) -> None:
        with self.condition:
            self.condition.notify_all()
        self._notifier.call(self._fire)

    def _fire(self) -> None:
        self.woken.fire()  # work for the training thread ends here, too
        self.changed.fire()


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # whoever gave up waiting for it has no use for a complaint
