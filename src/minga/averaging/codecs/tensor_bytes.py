"""Bytes as tensors and back, without copies where the machine allows it.

A tensor on the device `meta` has a size and no numbers; its bytes are meta (see `minga.network.meta_bytes`), and the
other way round. That is how a simulated model takes part of which only the size is known.

Wire order is little-endian. On a little-endian machine an aligned buffer is used in place; otherwise the bytes are
reordered or realigned through a copy of the size of the buffer.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

import torch

from minga.network.meta_bytes import is_meta, meta_buffer

Buffer = bytes | bytearray | memoryview | torch.Tensor

CACHED_ELEMENTS: Final = 1 << 16
"""Elements worked on at once: 256 KiB of float32, which stay in the second-level cache of one core."""

_SWAP: bool = sys.byteorder == "big"


class _Scratch(threading.local):
    """One cache-sized float32 tensor per thread: allocating it each time would cost more than the work."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # whichever mode the first caller is in
            self.values = torch.empty(CACHED_ELEMENTS, dtype=torch.float32, device="cpu")


_SCRATCH: Final = _Scratch()


def scratch(numel: int) -> torch.Tensor:
    """`numel` <= `CACHED_ELEMENTS` uninitialised float32 values, valid until this thread asks again."""
    return _SCRATCH.values[:numel]


def bytes_of(buffer: Buffer, *, writable: bool) -> torch.Tensor:
    """A 1-D uint8 view of `buffer`; of a copy if it is read-only and need not be writable.

    Raises `ValueError` for a buffer that is read-only where it must be writable, or not contiguous bytes.
    """
    if isinstance(buffer, torch.Tensor):
        if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
            raise ValueError("a tensor used as a buffer must be contiguous, 1-D and of type uint8")
        if buffer.device.type not in ("cpu", "meta"):
            raise ValueError("a tensor used as a buffer must be in CPU memory")
        return buffer
    view = memoryview(buffer)
    if is_meta(view):
        return torch.empty(view.nbytes, dtype=torch.uint8, device="meta")
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.readonly:
        if writable:
            raise ValueError("the buffer is read-only")
        view = memoryview(bytearray(view))
    if view.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(view, dtype=torch.uint8)


def as_bytes(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor as a writable view of bytes, without a copy; meta bytes for `meta`."""
    if values.is_meta:
        return meta_buffer(values.nbytes)
    view = memoryview(values.numpy())  # type: ignore[arg-type]  # numpy arrays are buffers at run time
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _usable_in_place(raw: torch.Tensor, dtype: torch.dtype) -> bool:
    size = dtype.itemsize
    return not _SWAP and raw.data_ptr() % size == 0 and raw.storage_offset() % size == 0


def load(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The little-endian bytes `raw` (uint8, [n * size]) as a tensor of `dtype` [n]; a view where possible."""
    if _usable_in_place(raw, dtype):
        return raw.view(dtype)
    groups = raw.view(-1, dtype.itemsize)
    return (groups.flip(1) if _SWAP else groups.clone()).view(dtype).view(-1)


def store(values: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype) -> None:
    """Write `values` [n], cast to `dtype` with rounding to nearest even, as little-endian bytes into `raw`."""
    if _usable_in_place(raw, dtype):
        raw.view(dtype).copy_(values)
        return
    groups = values.to(dtype).view(torch.uint8).view(-1, dtype.itemsize)
    raw.view(-1, dtype.itemsize).copy_(groups.flip(1) if _SWAP else groups)
