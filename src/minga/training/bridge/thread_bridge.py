"""What the event loop asks of the thread that trains, and how each hears of the other: both ports rest on it.

Only that thread may touch the model. It comes by at its boundaries (`poll`), takes the work that lies there, and the
loop's futures tell what came of it. When the thread fails, or the peer ends, everybody who waits hears why.
`is_watched` tells whether a profiler or a hook watches the optimizer of a training loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from minga.core.aio import Signal
from minga.core.errors import ClosedError, ConfigurationError, MingaError

# ---- Work that only the thread that trains may do, on behalf of the event loop.


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


# ---- The notifier: it tells an event loop, from any thread, that something changed.


TELL_PERIOD_S = 0.25
"""Shortest time, in seconds, between two pieces of news that can wait a little."""


class LoopNotifier:
    """Fires `changed` on the loop, at once for what is urgent and now and then for the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.changed = Signal()
        self._loop = loop
        self._told_s, self._is_due = -TELL_PERIOD_S, False

    def tell(self) -> None:
        """Something urgent changed."""
        self.call(self.changed.fire)

    def tell_sparingly(self) -> None:
        """Tell at once, but not more often than every `TELL_PERIOD_S`: what comes in between is told at its end."""
        if self._is_due:
            return
        now_s = self._loop.time()
        if now_s - self._told_s >= TELL_PERIOD_S:
            self._told_s = now_s
            self.tell()
        else:
            self._is_due = True
            self.call(self._loop.call_later, TELL_PERIOD_S, self._tell_late)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` on the loop, if that still runs."""
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001  (it need not be woken)
            self._loop.call_soon(function, *arguments)
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits for this any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell_late(self) -> None:
        self._told_s, self._is_due = self._loop.time(), False
        self.changed.fire()


# ---- The training thread as both ports see it: work for it, and everybody who waits for it.


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
        self._unfinished = ""  # the name of the work that the thread does, or that failed

    # ---- the training thread

    def finish(self, work: ThreadTask) -> None:
        """Do the piece of work that `poll` returned, and report its result to the loop. Raises what closed the port
        meanwhile.
        """
        try:
            with self.condition:
                self._check_open()
                self._unfinished = work.name
                self._work.popleft()
            result = work.run()
            self._notifier.call(work.settle, result, None)
            self._unfinished = ""
        except BaseException as error:
            self._notifier.call(work.settle, None, self._break(work.name, error))
            raise

    def check_whole(self) -> None:
        """Raise where the model may be half-way between two steps: what failed amid work for the loop, and
        `ConfigurationError` in a signal handler amid such work.
        """
        if not self._unfinished:
            return
        self._check_open()
        raise ConfigurationError(
            f"the state is not whole amid step(), which was interrupted in its work {self._unfinished}: let the signal "
            "handler only note the wish, and read the state after the call"
        )

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
        """Under the condition: the work that lies there, up to `finish`: an interrupt may come before. Raises what
        closed the port.
        """
        self._check_open()
        return self._work[0] if self._work else None

    def _check_open(self) -> None:
        if isinstance(self.closed, ConfigurationError):
            raise self.closed.with_traceback(None)  # its cause is this program: the way to here says nothing
        if self.closed is not None:
            raise self.closed

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

    def _break(self, name: str, error: BaseException) -> MingaError:
        """An error, or an interrupt, came amid work of this name: the model may be half-way between two steps."""
        why = f"the model could not {name} on the thread that trains: {type(error).__name__}: {error}"
        failure = error if isinstance(error, MingaError) else ClosedError(why)
        self._end(failure)
        return failure

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


# ---- Whether anybody wants to know when the optimizer of a training loop steps.
#
# Torch wraps the `step` of every optimizer: it marks the call for profilers and asks for hooks, before and after. For
# a small micro-batch that takes longer than everything else in a call of `minga.Optimizer.step`, so it is done where
# there is a profiler or a hook.


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler runs, or a hook of this optimizer or of all wants to be called."""
    return bool(
        torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # noqa: SLF001  (nothing else tells)
        or optimizer._optimizer_step_pre_hooks  # noqa: SLF001
        or optimizer._optimizer_step_post_hooks  # noqa: SLF001
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )
