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

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from minga.core._errors import LocalError
from minga.network._virtual_process import CURRENT_PROCESS, VirtualProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLOCK_RESOLUTION_S = 1e-9
MAX_TASKS_NAMED = 20
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
    """A callback that is set aside while its process is stopped."""

    __slots__ = ()
    _context: contextvars.Context
    _loop: VirtualTimeLoop

    def _run(self) -> None:
        process = self._context.get(CURRENT_PROCESS)
        if process is not None and process.stopped:
            self._loop.park(process, self)
        else:
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    """A timer that is set aside while its process is stopped."""

    __slots__ = ("_serial",)
    _context: contextvars.Context
    _loop: VirtualTimeLoop
    _when: float

    def __init__(
        self, serial: int, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._serial = serial
        self._scheduled = True  # it goes straight into the loop's queue

    def __lt__(self, other: object) -> bool:
        # Timers of the same moment fire in the order in which they were set.
        if isinstance(other, _TimerHandle):
            return (self._when, self._serial) < (other._when, other._serial)
        return NotImplemented

    def _run(self) -> None:
        process = self._context.get(CURRENT_PROCESS)
        if process is not None and process.stopped:
            self._loop.park(process, self)
        else:
            super()._run()


class _Jump:
    """Stands where the base class expects a selector: instead of waiting for sockets it moves the clock."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        self._jump = jump

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next timer when nothing is ready.

    `start` is the loop's time at first, in seconds; with `limit_s` the loop raises `VirtualTimeLimitError` once it
    would run longer than that. Raises `DeadlockError` when nothing is ready and no timer is left.
    """

    _ready: Any
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, *, start: float = 0.0, limit_s: float | None = None) -> None:
        super().__init__()
        self._now = start
        self._end = None if limit_s is None else start + limit_s
        self._clock_resolution = CLOCK_RESOLUTION_S  # the base class takes the machine's, which is 16 ms on Windows
        self._selector = _Jump(self._jump)
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
        options = {key: value for key, value in options.items() if value is not None}
        task = _Task(coro, serial=self._serial, loop=self, **options)
        self._pending[task] = None
        task.add_done_callback(self._forget)
        process = options["context"].get(CURRENT_PROCESS) if "context" in options else CURRENT_PROCESS.get()
        if process is not None:
            process.adopt(task)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._pending.pop(task, None)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next turn of the loop."""
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
        self._check_closed()  # type: ignore[attr-defined]
        self._serial += 1
        timer = _TimerHandle(self._serial, when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
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

    def park(self, process: VirtualProcess, handle: asyncio.Handle) -> None:
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

    def _jump(self, timeout: float | None) -> None:
        when = math.inf if timeout is None else self._scheduled[0].when()
        if when == math.inf:
            raise DeadlockError(f"at {self._now:.6f} s nothing can ever happen again:{self._describe()}")
        if self._end is not None and when > self._end:
            raise VirtualTimeLimitError(f"not done at {self._end:.6f} s of virtual time:{self._describe()}")
        self._now = when
        # The base class runs what is due before now + resolution, which must be later than now.
        self._clock_resolution = max(CLOCK_RESOLUTION_S, 2 * math.ulp(when))

    def _describe(self) -> str:
        tasks = list(self._pending)
        lines = [_where(task) for task in tasks[:MAX_TASKS_NAMED]]
        if len(tasks) > MAX_TASKS_NAMED:
            lines.append(f"and {len(tasks) - MAX_TASKS_NAMED} more tasks")
        return "".join(f"\n  {line}" for line in lines)

    def _process_events(self, event_list: list[object]) -> None:
        """There are no sockets, hence no events of theirs."""

    def _write_to_self(self) -> None:
        """There is no selector to wake up."""


def run_virtual(coro: Coroutine[Any, Any, T], *, start: float = 0.0, limit_s: float | None = None) -> T:
    """Run `coro` on a fresh `VirtualTimeLoop` and return its result; whatever else still runs then is cancelled.

    Raises what `coro` raises, `DeadlockError`, and `VirtualTimeLimitError` after `limit_s` virtual seconds.
    """
    loop = VirtualTimeLoop(start=start, limit_s=limit_s)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(coro)
        finally:
            loop.finish()


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
