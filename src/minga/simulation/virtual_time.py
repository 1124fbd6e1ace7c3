"""An event loop on virtual time.

Theory of operation. Where an ordinary loop sleeps until its next timer is due, this one sets its clock to that
moment. Nothing waits, no thread and no socket exists, and the order of everything follows from the program alone:
equal programs with equal seeds do equal things at equal times. Four things see to that:

* work for a thread pool (`run_in_executor`, `asyncio.to_thread`) runs at once on the loop's own thread;
* tasks hash by the order of their creation, so that the sets of tasks inside `asyncio.TaskGroup` and
  `asyncio.wait` have the same order in each run;
* pending tasks are kept alive by the loop, so that no garbage collection ends one at a moment of its own;
* leftover tasks are cancelled in the order of their creation.

Code that iterates over other sets, or draws from unseeded random numbers, brings its own disorder.
"""

# The loop reads what its own handles hold without a call for each.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from minga.core.errors import LocalError
from minga.core.thread_guard import unguarded
from minga.network.virtual.process import CURRENT_PROCESS, NO_PROCESS, VirtualProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_S = 1e-9
"""Timers that are due within so much of each other fire in one turn, so that rounding does not part them."""

MAX_TASKS_NAMED = 20
MOST_CANCELLED = 100
"""Cancelled timers are left where they are until there are so many, and they are most."""

GC_THRESHOLDS = (2_000_000, 20, 50)
"""Simulations hold millions of objects for long; to look at all as often as usual takes a quarter of the time, and to
look at new ones at each 500,000 still 8 %: few of them die in cycles, but many soon."""

LAST_WORDS_S = 3600.0
"""Virtual seconds that cancelled tasks may take to clean up."""


class DeadlockError(LocalError):
    """Every task waits, and no timer is left that could wake one; the message names the tasks."""


class VirtualTimeLimitError(LocalError):
    """The simulation did not end within the virtual time that it was given; the message names the tasks."""


class _Task(asyncio.Task[Any]):
    """A task with a hash that does not depend on memory addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, serial: int, **options: Any) -> None:
        self._serial = serial  # first, because the base class already hashes the task
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class _Handle(asyncio.Handle):
    """A callback; made without what the base class does for its debug mode, which would cost more than all else."""

    __slots__ = ()
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: contextvars.Context

    def __init__(
        self, callback: Any, args: tuple[Any, ...], loop: VirtualTimeLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None


class _TimerHandle(asyncio.TimerHandle):
    """The same at a time."""

    __slots__ = ()
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: contextvars.Context

    def __init__(
        self,
        when: float,
        callback: Any,
        args: tuple[Any, ...],
        loop: VirtualTimeLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self._when, self._scheduled = when, True


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next timer when nothing is ready.

    `start` is the loop's time at first, in seconds; with `limit_s` the loop raises `VirtualTimeLimitError` once it
    would run longer than that. Raises `DeadlockError` when nothing is ready and no timer is left.
    """

    _ready: deque[_Handle | _TimerHandle]
    _scheduled: list[tuple[float, int, _TimerHandle]]
    _stopping: bool
    _closed: bool
    _timer_cancelled_count: int

    def __init__(self, *, start: float = 0.0, limit_s: float | None = None) -> None:
        super().__init__()
        self._now = self._until = start
        self._end = None if limit_s is None else start + limit_s
        self._selector = None  # nothing is ever waited for
        self._pending: dict[asyncio.Task[Any], None] = {}
        self._processes: dict[VirtualProcess, None] = {}
        self._serial = 0

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task; it is kept alive until it is done, and belongs to the process that starts it."""
        self._check_closed()  # type: ignore[attr-defined]
        self._serial += 1
        context = options.get("context")
        task = _Task(coro, serial=self._serial, loop=self, name=options.get("name"), context=context)
        self._pending[task] = None
        process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        if process is not None:
            process.adopt(task, then=self._forget)
        else:
            task.add_done_callback(self._forget, context=NO_PROCESS)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._pending.pop(task, None)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next turn of the loop."""
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback when the virtual clock reaches `when`."""
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        self._serial += 1
        timer = _TimerHandle(when, callback, args, self, context)
        # Timers of the same moment fire in the order in which they were set.
        heapq.heappush(self._scheduled, (when, self._serial, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after `delay` virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ARG002
        """Call `func` at once, on this thread; its outcome is there in the next turn of the loop."""
        self._check_closed()  # type: ignore[attr-defined]
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except StopIteration as error:  # which a future cannot carry
            self.call_soon(_settle, future.set_exception, future, RuntimeError(f"raised {error!r}"))
        except BaseException as error:
            self.call_soon(_settle, future.set_exception, future, error)
        else:
            self.call_soon(_settle, future.set_result, future, result)
        return future

    def park(self, process: VirtualProcess, handle: _Handle | _TimerHandle) -> None:
        """Set a callback aside until its process continues."""
        self._processes[process] = None
        process.parked.append(lambda: None if handle.cancelled() else self._ready.append(handle))

    def finish(self) -> None:
        """Let stopped processes continue and cancel what is left, in order; errors go to the exception handler."""
        self._end = self._now + LAST_WORDS_S
        for process in self._processes:
            process.resume()
        while left := list(self._pending):
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for task in left:
                if not task.cancelled() and (error := task.exception()) is not None:
                    message = "an error while a simulation ended"
                    self.call_exception_handler({"message": message, "exception": error, "task": task})

    def _run_once(self) -> None:
        """Turns until the loop is to stop: what is ready, or else what is due at the next moment at which anything is.

        The base class does the same with a selector, with timers that compare themselves, and with a method call for
        each callback, at several times the cost; a simulation does hardly anything else.
        """
        timers, ready, process_of, pop = self._scheduled, self._ready, CURRENT_PROCESS, heapq.heappop
        while True:
            if self._timer_cancelled_count > MOST_CANCELLED:
                self._drop_cancelled()
            if not ready and not self._stopping:
                self._jump()
            until = self._until
            while timers and timers[0][0] < until:
                timer = pop(timers)[2]
                timer._scheduled = False
                if timer._cancelled:
                    self._timer_cancelled_count -= 1
                else:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                process = context.get(process_of)
                if process is not None and process.stopped:
                    self.park(process, handle)
                    continue
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"an error in the callback {handle._callback!r}"
                    self.call_exception_handler({"message": message, "exception": error, "handle": handle})
            if self._stopping:
                return

    def _drop_cancelled(self) -> None:
        timers = self._scheduled
        if 2 * self._timer_cancelled_count > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0

    def _jump(self) -> None:
        timers = self._scheduled
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
            self._timer_cancelled_count -= 1
        when = timers[0][0] if timers else math.inf
        if when == math.inf:
            raise DeadlockError(f"at {self._now:.6f} s nothing can ever happen again:{self._describe()}")
        if self._end is not None and when > self._end:
            raise VirtualTimeLimitError(f"not done at {self._end:.6f} s of virtual time:{self._describe()}")
        self._now = max(self._now, when)
        self._until = self._now + max(RESOLUTION_S, 2.0 * math.ulp(self._now))

    def _describe(self) -> str:
        tasks = list(self._pending)
        lines = [_where(task) for task in tasks[:MAX_TASKS_NAMED]]
        if len(tasks) > MAX_TASKS_NAMED:
            lines.append(f"and {len(tasks) - MAX_TASKS_NAMED} more tasks")
        return "".join(f"\n  {line}" for line in lines)

    def _write_to_self(self) -> None:
        """There is no selector to wake up."""


def run_virtual(coro: Coroutine[Any, Any, T], *, start: float = 0.0, limit_s: float | None = None) -> T:
    """Run `coro` on a fresh `VirtualTimeLoop` and return its result; whatever else still runs then is cancelled.

    Raises what `coro` raises, `DeadlockError`, and `VirtualTimeLimitError` after `limit_s` virtual seconds.
    """
    loop, thresholds = VirtualTimeLoop(start=start, limit_s=limit_s), gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with unguarded(), asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                return runner.run(coro)
            finally:
                loop.finish()
    finally:
        gc.set_threshold(*thresholds)


def _settle(setter: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.cancelled():
        setter(outcome)


def _where(task: asyncio.Task[Any]) -> str:
    """Name of a task, its coroutine, and the innermost line at which it waits."""
    outer: Any = task.get_coro()
    inner = outer
    while getattr(following := getattr(inner, "cr_await", None), "cr_frame", None) is not None:
        inner = following
    frame = getattr(inner, "cr_frame", None)
    place = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
    return f"{task.get_name()}: {getattr(outer, '__qualname__', outer)}{place}"
