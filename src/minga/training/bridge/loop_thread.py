"""The one background thread of a peer with its event loop, and what the garbage collector passes over while it runs.

The loop is one of asyncio's own, whatever policy the program has set: over another one's transports (uvloop's) no TCP
connection between peers comes about, and nothing says so. uvloop spares too little to be worth a second kind of loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minga.core.aio import end

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on an event loop in a daemon thread. `close` ends loop and thread."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result, from any other thread.

        If the waiting thread is interrupted (Ctrl-C), the coroutine is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def ask(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop and wait for its result."""

        async def run() -> T:
            return function()

        return self.call(run())

    def close(self, timeout_s: float = 1.0) -> None:
        """Cancel what is left on the loop, stop it and join the thread; may be called twice."""
        if self.loop.is_closed():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError, TimeoutError):
            self.call(_cancel_others(), timeout_s)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    return asyncio.SelectorEventLoop()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await end(*others)
    await asyncio.get_running_loop().shutdown_default_executor()


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
