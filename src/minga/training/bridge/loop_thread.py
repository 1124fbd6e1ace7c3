"""The one background thread of a peer with its event loop, and what the garbage collector passes over while it runs.

The loop is one of asyncio's own, whatever policy the program has set: over another one's transports (uvloop's) no TCP
connection between peers comes about, and nothing says so. uvloop spares too little to be worth a second kind of loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from minga.core.aio import end
from minga.core.errors import ClosedError, ConfigurationError

T = TypeVar("T")

END_S: Final = 1.0
"""Seconds that what is left on a loop has to end."""
LOOK_S: Final = 0.2
"""Seconds between two looks whether the loop still runs, at which Ctrl-C is heard everywhere."""


class LoopThread:
    """Runs coroutines on an event loop in a daemon thread. `close` ends loop and thread."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = _new_loop()
        self._pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
        self.loop.set_default_executor(self._pool)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result, from any other thread.

        If the waiting thread is interrupted (Ctrl-C), the coroutine is cancelled. Raises `ClosedError` if the loop ends
        first, or has ended: nobody may wait for it then, least of all a thread that the interpreter waits for. Raises
        `ConfigurationError` on the thread of the loop.
        """
        try:
            self.check_elsewhere()
        except ConfigurationError:
            coroutine.close()
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:  # the loop is closed
            coroutine.close()
            raise ClosedError("this peer was closed") from error
        ends_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        try:
            while not future.done():
                if not self._thread.is_alive():
                    coroutine.close()
                    raise ClosedError("this peer was closed")
                if (left_s := ends_s - time.monotonic()) <= 0.0:
                    raise TimeoutError
                with contextlib.suppress(TimeoutError):
                    future.exception(min(left_s, LOOK_S))
            return future.result()
        except concurrent.futures.CancelledError as error:  # by `close`
            raise ClosedError("this peer was closed") from error
        except BaseException:
            future.cancel()
            raise

    def ask(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop and wait for its result; on the loop's own thread at once."""
        if threading.current_thread() is self._thread:
            return function()

        async def run() -> T:
            return function()

        return self.call(run())

    def close(self) -> None:
        """Stop the loop, cancel what is left on it, and wait for the thread, for some seconds at most; may be called
        twice. Raises `ConfigurationError` on the thread itself.
        """
        self.check_elsewhere()
        if not self._is_ending:
            self._is_ending = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(4 * END_S)  # `_run` gives three times as long as one thing has to end

    def check_elsewhere(self) -> None:
        """Raise `ConfigurationError` on the thread of the loop, which cannot wait for itself."""
        if threading.current_thread() is self._thread:
            raise ConfigurationError(
                "a listener to events is called on the peer's background thread, which this would wait for: have it "
                "note what happened, and do this on another thread"
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._end_all())
        self.loop.close()

    async def _end_all(self) -> None:
        """Cancel all tasks, let other threads end what they do for them, and cancel what those have begun meanwhile."""
        await _cancel_others()
        # asyncio's own way to wait for them cannot be given up without a wait for them.
        waiting = threading.Thread(target=self._pool.shutdown, daemon=True)
        waiting.start()
        ends_s = self.loop.time() + END_S
        while waiting.is_alive() and self.loop.time() < ends_s:
            await asyncio.sleep(0.01)
        await _cancel_others()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    return asyncio.SelectorEventLoop()


async def _cancel_others() -> None:
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        ended, _ = await asyncio.wait(others, timeout=END_S)
        await end(*ended)  # which takes note of their exceptions


# ---- Settled objects: what stays as long as a peer trains is not looked through again and again for garbage.
#
# A process with torch has 150,000 to 320,000 objects that Python's collector follows, nearly all of them parts of
# modules. To look through them takes 70 to 150 ms, and the streams and tasks of a peer let that happen every hundred
# steps: with a small model that was a tenth of the processor time of a peer. What is there when a peer begins to train
# is therefore settled until the last peer of the process is closed. Reference counts free settled objects as ever;
# only cycles of them wait for that moment.


_lock = threading.RLock()  # collecting may run what closes another peer
_owners = 0
_settled_here = 0


def settle_objects() -> Callable[[], None]:
    """Have the collector pass over the objects that are there now, all garbage among them collected before.

    Returns the function that ends this, once all who called here have called theirs; it may be called twice. A program
    that has frozen objects by itself is left alone. Any thread may call it.
    """
    global _owners, _settled_here
    with _lock:
        _owners += 1
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            _settled_here = gc.get_freeze_count()
    is_ended = False

    def end() -> None:
        nonlocal is_ended
        if not is_ended:
            is_ended = True
            _leave()

    return end


def _leave() -> None:
    global _owners, _settled_here
    with _lock:
        _owners -= 1
        if not _owners and _settled_here:
            if gc.get_freeze_count() <= _settled_here:  # else the program froze more, and it is not for us to say
                gc.unfreeze()
            _settled_here = 0
