"""Meta bytes: a length without content, for simulated transfers of what exists only by its size.

Theory of operation. A meta buffer is a slice of one endless view, in which every index stands for the same byte of
memory (its stride is 0). So it has a length, can be sliced and queued like any other buffer, and takes neither memory
nor time. Not being contiguous, it is refused by whatever wants to have real bytes in place: sockets, hashes, tensors.

Only the virtual network carries meta bytes: by their length, never by copying. They go into meta buffers alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from minga.network.interface import Buffer

ENDLESS_BYTES: Final = 1 << 50

_BYTE: Final = np.zeros(1, np.uint8)
_ENDLESS: Final = memoryview(
    np.lib.stride_tricks.as_strided(_BYTE, (ENDLESS_BYTES,), (0,), writeable=False)  # type: ignore[arg-type]
)


def meta_buffer(size: int) -> memoryview:
    """A buffer of `size` bytes without content. Raises `ValueError` if `size` is negative or above 1 PiB."""
    if not 0 <= size <= ENDLESS_BYTES:
        raise ValueError(f"a meta buffer has 0 to {ENDLESS_BYTES} bytes, not {size}")
    return _ENDLESS[:size]


def is_meta(buffer: Buffer) -> bool:
    """Whether `buffer` has a length and no content."""
    return isinstance(buffer, memoryview) and buffer.obj is _ENDLESS.obj


def byte_view(buffer: Buffer) -> memoryview:
    """The buffer, meta or contiguous, as a view of bytes."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def fill(target: memoryview, source: memoryview) -> None:
    """Copy `source` into `target`, of the same length; a meta target takes no content.

    Raises `ValueError` if `source` is meta and `target` is not: there is nothing to fill it with.
    """
    if is_meta(target):
        return
    if is_meta(source):
        raise ValueError(f"{len(source)} bytes came without their content, from a model that is only a size")
    target[:] = source
