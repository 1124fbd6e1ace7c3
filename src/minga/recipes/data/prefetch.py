"""Making the next batches on a thread of its own while training computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final, TypeVar

T = TypeVar("T")

DEPTH: Final = 4
_LOOK_S: Final = 0.2
_END_S: Final = 0.5
"""Longest wait for the thread at the end. One whose source pauses, as after a broken line, ends when that goes on, or
with the process.
"""


def prefetched(source: Iterator[T], depth: int = DEPTH) -> Iterator[T]:
    """What `source` yields, at most `depth` items ahead. Its error is raised in its place; the thread ends with this
    generator, or as soon as `source` yields again.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: tuple[T | None, BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for item in source:
                put((item, None))
                if stopped.is_set():
                    return
        except BaseException as error:  # raised again where the items are taken
            put((None, error))
        else:
            put((None, StopIteration()))

    thread = threading.Thread(target=work, name="minga-batches", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error = ready.get(timeout=_LOOK_S)  # in slices, so that Ctrl-C is heard everywhere
            except queue.Empty:
                continue
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(_END_S)
