"""Small tools for tasks on one event loop: wake-ups, observers, hedged attempts, and pauses after failures.

    tasks that wait ◀── fire ── Signal           sources a, b, c ─▶ racing (all at once) ─▶ the first success
    a change ─▶ Observers ─▶ typed calls         a failure ─▶ Backoff ─▶ longer pause
    sources a, b, c ─▶ first_in_turn (one by one) ─▶ the first success
    something under way ─▶ watching ─▶ a look now and then
    work on tensors ─▶ offload ─▶ another thread, or this one if it is little
    writes ─▶ DiskWrites ─▶ another thread, one after the other

All rooms use them. They know nothing of peers, connections or time but the running loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Generic, ParamSpec, TypeVar

from minga.core.errors import RemoteError
from minga.core.thread_guard import loop_bound

# ---- A wake-up call for any number of waiting tasks.


class Signal:
    """Something changed: `fire` wakes every task that waits at that moment. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # a dict keeps the order, so that simulated runs repeat

    def fire(self) -> None:
        """Wake all who wait."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            wake(waiter)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next `fire`, or until `timeout_s` seconds of loop time passed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Let go on who waits, if anybody does."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


# ---- Observers: the one way in which parts of a peer act on each other's changes.
#
# An observer is called directly, with typed arguments, and what it raises goes to the part that tells it, so that no
# mistake in a rule stays hidden. Events (`minga.core.events.bus`) are for people and logs only: nothing acts on them.


P = ParamSpec("P")


@loop_bound
class Observers(Generic[P]):
    """The functions to call when one thing happens; they are called in the order in which they were added."""

    def __init__(self) -> None:
        self._observers: tuple[Callable[P, None], ...] = ()  # one that is being told stays as it is

    def add(self, observer: Callable[P, None]) -> Callable[[], None]:
        """Call `observer` each time from now on; returns the function that ends this."""
        self._observers = (*self._observers, observer)
        return lambda: self._remove(observer)

    def tell(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call all observers. An exception of one of them is raised here, and the rest are not called."""
        for observer in self._observers:
            observer(*arguments, **named)

    def _remove(self, observer: Callable[P, None]) -> None:
        place = self._observers.index(observer)
        self._observers = (*self._observers[:place], *self._observers[place + 1 :])


# ---- Tasks: started, and ended where they are not needed any more.


def spawn(coroutine: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Start a task and keep it in `tasks` until it has ended: a loop alone does not keep it from being collected."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


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


# ---- Several attempts at once, of which one success is enough.


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


# ---- Asking several peers for one thing that any of them may have.


FIRST_PAUSE_S = 0.5


async def first_in_turn(
    asks: Iterable[Callable[[], Coroutine[Any, Any, T]]],
    *,
    longest_pause_s: float = math.inf,
    is_coming: Callable[[], bool] = lambda: False,
) -> T | None:
    """The first answer; None if all failed with `RemoteError` or a timeout.

    The sources are asked one after the other, the next one when the last failed or takes long, unless the answer
    `is_coming`. The pauses double up to the longest: a source that never answers costs little time, and over a slow
    link only few sources send the same bytes.
    """
    loop, left, pause_s = asyncio.get_running_loop(), deque(asks), FIRST_PAUSE_S
    asked = set[asyncio.Task[T]]()
    try:
        while left or asked:
            if left and not (asked and is_coming()):
                asked.add(loop.create_task(left.popleft()()))
            done, asked = await asyncio.wait(
                asked, timeout=pause_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            pause_s = pause_s if done else min(longest_pause_s, 2 * pause_s)
            for task in done:
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, RemoteError | TimeoutError):
                    raise error
    finally:
        await end(*asked)
    return None


# ---- For how long something that failed is not tried again: either paused for, or looked up before the next attempt.


class Backoff:
    """Pauses of `first_s` seconds, and each time twice as long, up to `longest_s`, until overcome."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._until_s, self._next_s = float("-inf"), first_s

    def next_s(self) -> float:
        """The seconds to pause now; the next pause is twice as long."""
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s

    @property
    def is_on(self) -> bool:
        """Whether it is still too early to try again."""
        return asyncio.get_running_loop().time() < self._until_s

    def suffer(self) -> None:
        """Note a failure; further failures while the backoff lasts count as the same one."""
        if not self.is_on:
            self._until_s = asyncio.get_running_loop().time() + self.next_s()

    def overcome(self) -> None:
        """It worked."""
        self._next_s = self._first_s


# ---- A look at something now and then while something else is under way, without a task of its own.


@contextlib.contextmanager
def watching(period_s: float, look: Callable[[], bool]) -> Iterator[None]:
    """Inside, call `look` in the next turn of the loop and every `period_s` seconds, until it has seen what it looks
    for. What it raises goes to the loop's exception handler, and ends the looks.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle

    def turn() -> None:
        nonlocal timer
        if not look():
            timer = loop.call_later(period_s, turn)

    timer = loop.call_soon(turn)
    try:
        yield
    finally:
        timer.cancel()


# ---- Work on tensors beside the event loop, unless there is so little of it that the way to another thread costs
# more.


MOST_BYTES_HERE = 128 << 10
"""Work on so many bytes takes well under a millisecond; to wake a thread and to be woken by it takes about a tenth."""


async def offload(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Do `work`, which goes over `size` bytes a few times, on another thread if these are many."""
    if size <= MOST_BYTES_HERE:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


# ---- Writes to the disk beside the event loop, which must not wait for one: others take a silent peer for dead.


class DiskWrites:
    """Writes on one thread of its own, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "minga-disk")

    def do(self, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write` soon; it deals with a disk that refuses itself. Where no loop runs it is called at once."""
        try:
            asyncio.get_running_loop().run_in_executor(self._thread, write, *arguments)
        except (
            RuntimeError
        ):  # no loop, or the process is at its end: thread pools take no work then, and have none left
            write(*arguments)

    def close(self) -> None:
        """Wait until all is written; not on the loop."""
        self._thread.shutdown()
