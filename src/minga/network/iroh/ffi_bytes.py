"""Moving bulk bytes through iroh's Python bindings at full speed.

Theory of operation. The generated bindings (uniffi) move bytes correctly but slowly. A Python loop copies outgoing
`bytes` into the foreign buffer one at a time (about 7 MB/s). Incoming bytes are first sliced into a `bytes` object.
Every wait for the foreign side goes through a lock, a table and the event loop's self-pipe, even if the answer is
already there. Three calls carry all bulk traffic: writing, reading into a buffer, and waiting for either. This file
makes exactly these three with the same foreign functions that the bindings use:

* `write` reserves the foreign buffer without zeroing it and fills it with one `memmove` from any contiguous buffer;
* `read_into` copies from the foreign buffer straight into the caller's memory: one copy on our side;
* both poll the foreign future in place and suspend only when it is really pending. Since the result is taken in the
  same breath in which it became ready, a cancelled read never loses bytes.

The bindings themselves are not modified, so that other users of iroh in this process are not affected. Before first
use their shape is checked (`unsupported_reason`); if it ever changes, a warning says so and the same calls go through
the bindings' public methods: slow, but right.

Two copies inside the foreign library (between its buffer and its own vectors, byte by byte, about one nanosecond
per byte each) cannot be avoided from here.
"""

# ruff: noqa: SLF001  (the private parts of the bindings are this file's subject)
from __future__ import annotations

import asyncio
import ctypes
import itertools
import struct
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from iroh import iroh_ffi

from minga.core.aio import end
from minga.network.interface import Buffer
from minga.network.interrupt import Interrupt

PIECE_BYTES = 256 << 10
"""Largest number of bytes handed over in one foreign call: large enough to make its fixed cost (about 60 µs) small,
small enough to hold the event loop for well under a millisecond."""

_LENGTH = struct.Struct(">i")  # the bindings put a signed big-endian length before the bytes
_READY = 0  # poll code: the foreign future is done; the other code says: poll again

_FUNCTIONS = (
    "ffi_iroh_ffi_rustbuffer_alloc",
    "ffi_iroh_ffi_rustbuffer_reserve",
    "ffi_iroh_ffi_rust_future_poll_u64",
    "ffi_iroh_ffi_rust_future_complete_u64",
    "ffi_iroh_ffi_rust_future_free_u64",
    "ffi_iroh_ffi_rust_future_poll_rust_buffer",
    "ffi_iroh_ffi_rust_future_complete_rust_buffer",
    "ffi_iroh_ffi_rust_future_free_rust_buffer",
    "uniffi_iroh_ffi_fn_method_sendstream_write",
    "uniffi_iroh_ffi_fn_method_recvstream_read",
)
_BUFFER_FIELDS = [
    ("capacity", ctypes.c_uint64),
    ("len", ctypes.c_uint64),
    ("data", ctypes.POINTER(ctypes.c_char)),
]

T = TypeVar("T")


def unsupported_reason(bindings: Any = iroh_ffi) -> str | None:
    """Why the fast path does not fit these bindings; None if it does."""
    library = getattr(bindings, "_UniffiLib", None)
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        return f"no foreign function {missing[0]}"
    for name in ("_uniffi_rust_call_with_error", "_UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK"):
        if not callable(getattr(bindings, name, None)):
            return f"no {name}"
    if list(getattr(getattr(bindings, "_UniffiRustBuffer", None), "_fields_", ())) != _BUFFER_FIELDS:
        return "the foreign buffer has other fields"
    if not hasattr(getattr(bindings, "_UniffiFfiConverterTypeIrohError__as_error", None), "lift"):
        return "no error converter"
    if getattr(bindings, "_UNIFFI_RUST_FUTURE_POLL_READY", None) != _READY:
        return "other poll codes"
    return _wrong_signature(library, bindings._UniffiRustBuffer)


def _wrong_signature(library: Any, buffer_type: Any) -> str | None:
    write = library.uniffi_iroh_ffi_fn_method_sendstream_write.argtypes
    read = library.uniffi_iroh_ffi_fn_method_recvstream_read.argtypes
    poll = library.ffi_iroh_ffi_rust_future_poll_u64.argtypes
    if tuple(write) != (ctypes.c_uint64, buffer_type):
        return "writing takes other arguments"
    if tuple(read) != (ctypes.c_uint64, ctypes.c_uint32):
        return "reading takes other arguments"
    if len(poll) != 3 or poll[0] is not ctypes.c_uint64 or poll[2] is not ctypes.c_uint64:
        return "polling takes other arguments"
    return None


async def write(stream: Any, data: memoryview, interrupt: Interrupt) -> int:
    """Write up to `PIECE_BYTES` of `data` (contiguous bytes) to an iroh `SendStream`; returns how many were taken.

    Raises the bindings' `IrohError`, or the interrupt's error.
    """
    piece = data[:PIECE_BYTES]
    if _slow_reason is not None:
        return int(await _interruptible(stream.write(bytes(piece)), interrupt))
    library = iroh_ffi._UniffiLib
    handle = stream._uniffi_clone_handle()
    future = library.uniffi_iroh_ffi_fn_method_sendstream_write(handle, _foreign_copy(piece))
    try:
        await _ready(library.ffi_iroh_ffi_rust_future_poll_u64, future, interrupt)
        return int(_call(library.ffi_iroh_ffi_rust_future_complete_u64, future))
    finally:
        library.ffi_iroh_ffi_rust_future_free_u64(future)
        del stream  # an error that is still looked at would hold it, and with it the socket


async def read_into(stream: Any, target: memoryview, interrupt: Interrupt) -> int:
    """Read up to `PIECE_BYTES` from an iroh `RecvStream` into `target` (a writable, contiguous view of bytes).

    Returns the number of bytes, as soon as any are there; 0 at the end of the stream. Raises the bindings'
    `IrohError`, or the interrupt's error. A cancelled call loses no bytes.
    """
    limit = min(target.nbytes, PIECE_BYTES)
    if _slow_reason is not None:
        got = await _interruptible(stream.read(limit), interrupt)
        target[: len(got)] = got
        return len(got)
    library = iroh_ffi._UniffiLib
    future = library.uniffi_iroh_ffi_fn_method_recvstream_read(stream._uniffi_clone_handle(), limit)
    try:
        await _ready(library.ffi_iroh_ffi_rust_future_poll_rust_buffer, future, interrupt)
        buffer = _call(library.ffi_iroh_ffi_rust_future_complete_rust_buffer, future)
    finally:
        library.ffi_iroh_ffi_rust_future_free_rust_buffer(future)
        del stream  # as above
    try:
        size = int(buffer.len) - _LENGTH.size
        if not 0 <= size <= limit:
            raise RuntimeError(f"the iroh bindings returned {size} bytes where at most {limit} were asked for")
        if size:
            destination = np.frombuffer(target, np.uint8)
            ctypes.memmove(destination.ctypes.data, _address_of_foreign(buffer) + _LENGTH.size, size)
        return size
    finally:
        buffer.free()


async def write_all(stream: Any, data: Buffer, interrupt: Interrupt) -> None:
    """Write all of `data`, giving other tasks a turn between pieces."""
    view = memoryview(data).cast("B")
    try:
        while view.nbytes:
            view = view[await write(stream, view, interrupt) :]
            if view.nbytes:
                await asyncio.sleep(0)
    finally:
        del stream  # as in `write`


def _foreign_copy(data: memoryview) -> Any:
    """A new foreign buffer with the length and the bytes of `data`. The function that it is passed to frees it."""
    library, total = iroh_ffi._UniffiLib, _LENGTH.size + data.nbytes
    empty = _call(library.ffi_iroh_ffi_rustbuffer_alloc, 0)
    buffer = _call(library.ffi_iroh_ffi_rustbuffer_reserve, empty, total)
    base = _address_of_foreign(buffer)
    ctypes.memmove(base, _LENGTH.pack(data.nbytes), _LENGTH.size)
    if data.nbytes:
        source = np.frombuffer(data, np.uint8)  # numpy knows the address of read-only buffers too
        ctypes.memmove(base + _LENGTH.size, source.ctypes.data, data.nbytes)
    buffer.len = total
    return buffer


def _address_of_foreign(buffer: Any) -> int:
    return ctypes.cast(buffer.data, ctypes.c_void_p).value or 0


def _call(function: Any, *arguments: Any) -> Any:
    """Call a foreign function and raise its error as `IrohError`."""
    error_converter = iroh_ffi._UniffiFfiConverterTypeIrohError__as_error
    return iroh_ffi._uniffi_rust_call_with_error(error_converter, function, *arguments)


async def _interruptible(call: Coroutine[Any, Any, T], interrupt: Interrupt) -> T:
    task = asyncio.get_running_loop().create_task(call)
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: _settle(gate))
    try:
        await interrupt.wait(gate)
        return task.result()
    finally:
        if not task.done():
            await end(task)


class _Wait:
    """One poll of a foreign future: its code once it is known, and the waiter to wake then."""

    __slots__ = ("code", "future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.code: int | None = None
        self.future: asyncio.Future[None] | None = None


_waits: dict[int, _Wait] = {}
_keys = itertools.count(1)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _on_progress(key: int, code: int) -> None:
    # Called on our own thread while polling or freeing, else on a thread of the foreign library. The order (set the
    # code, then look for a sleeper) mirrors the one in `_ready`, so that no wake-up is lost between the two.
    wait = _waits.pop(key)
    wait.code = code
    if wait.future is not None:
        try:
            wait.loop.call_soon_threadsafe(_settle, wait.future)
        except RuntimeError:
            return  # the loop was closed while the call was under way; no task waits for it any more


async def _ready(poll: Callable[..., None], foreign: Any, interrupt: Interrupt) -> None:
    """Return once the foreign future can be completed."""
    interrupt.check()
    loop = asyncio.get_running_loop()
    while True:
        wait, key = _Wait(loop), next(_keys)
        _waits[key] = wait
        poll(foreign, _progress_callback, key)
        if wait.code is None:
            wait.future = loop.create_future()
            if wait.code is None:
                await interrupt.wait(wait.future)
        if wait.code == _READY:
            return


_slow_reason = unsupported_reason()
if _slow_reason is None:
    _progress_callback = iroh_ffi._UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK(_on_progress)
else:
    warnings.warn(
        f"these iroh bindings are not the ones minga knows ({_slow_reason}): transfers are limited to a few MB/s",
        RuntimeWarning,
        stacklevel=2,
    )
