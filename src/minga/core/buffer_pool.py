"""Memory for bytes that come again and again in the same sizes.

Fresh memory is not free: the system hands it out page by page as it is first written to, which takes longer than the
writing itself. So what was used once is used again.

A piece is free when no object refers to it any more: no view of it, no slice, no tensor over it. A weak reference to
the array that all of these keep alive shows that; then the bytes return to the pool.
"""

from __future__ import annotations

import contextlib
import weakref
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview
"""Of something whole: never changed once it is there, but not copied either only to show that."""

Piece = npt.NDArray[np.uint8]


class BufferPool:
    """Pieces of memory that are used again. Any thread may call `take`, and one at a time `trim`."""

    def __init__(self) -> None:
        self._returned: SimpleQueue[Piece] = SimpleQueue()  # whose `put` is safe wherever a finalizer may run
        self._free: dict[int, list[Piece]] = {}
        self._idle: dict[int, list[Piece]] = {}
        """By size, the unused pieces; the second list has those unused since before the last trim."""

    def take(self, size_bytes: int) -> memoryview:
        """Writable memory of `size_bytes` bytes, with arbitrary contents."""
        self._collect()
        memory = _pop(self._free, size_bytes)
        if memory is None:
            memory = _pop(self._idle, size_bytes)
        if memory is None:
            memory = np.empty(size_bytes, np.uint8)
        owner = memory[:]  # every view of it refers to it, and it to the memory
        weakref.finalize(owner, self._returned.put, memory).atexit = False
        return memoryview(owner)  # type: ignore[arg-type]  # numpy arrays are buffers at run time

    def trim(self) -> None:
        """Give pieces that were not taken since the last call back to the system."""
        self._collect()
        self._idle, self._free = self._free, {}

    def _collect(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                memory = self._returned.get_nowait()
                self._free.setdefault(len(memory), []).append(memory)


def _pop(rooms: dict[int, list[Piece]], size_bytes: int) -> Piece | None:
    with contextlib.suppress(KeyError, IndexError):
        return rooms[size_bytes].pop()
    return None
