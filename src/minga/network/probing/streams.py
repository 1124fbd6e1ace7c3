"""The messages and bytes on the streams of a probe.

links.probe   Reserve ──▶, ◀── Ready or a refusal ("busy"); then nothing: the partner is reserved while it is open
links.sink    Batch and as many frames, again and again, from the prober
links.source  Wanted ──▶, ◀── Batch and as many frames, again and again

The last two end by a reset when the time is over, so that what is still in buffers then is dropped and not waited for.
Nothing is measured here: the frames are bulk bytes like any other, and receipts and meters on both sides see them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated

import msgspec

from minga.core.aio import end
from minga.core.errors import ProtocolError
from minga.network.rpc.stream import MessageStream

PHASE_S = 0.8
"""Seconds for which each direction is filled."""

MAX_PHASE_BYTES = 64 << 20
"""Most bytes that a probe moves in each direction, over all its streams: half a second of 1 Gbit/s."""

FRAME_SIZES = tuple(1 << power for power in range(11, 19))
GROWTH = 16
"""A frame takes at most this part of the bytes that went before: few frames, and none that a slow link is long at."""

MOST_FRAMES = 64

_BLANK = bytes(FRAME_SIZES[-1])


class Reserve(msgspec.Struct, frozen=True):
    """May I measure with you now?"""


class Ready(msgspec.Struct, frozen=True):
    """The partner takes part, and in no other probe until this stream ends."""


class ProbeRequest(msgspec.Struct, frozen=True):
    """Send me bytes for a while, at most `max_bytes`."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PHASE_BYTES)]


class Batch(msgspec.Struct, frozen=True):
    """`frames` bulk frames of `size` bytes each follow."""

    frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)]
    size: Annotated[int, msgspec.Meta(ge=1, le=FRAME_SIZES[-1])]


def most_probe_bytes(rate: float | None) -> int:
    """Most bytes that a probe moves in one direction over a line of `rate` bytes per second; None is any line."""
    return MAX_PHASE_BYTES if rate is None else min(MAX_PHASE_BYTES, int(rate * PHASE_S))


async def fill(stream: MessageStream, max_bytes: int, check: Callable[[], None], *, linger: bool = False) -> None:
    """Send for `PHASE_S` seconds, at most `max_bytes`; `check` may raise to stop.

    With `linger` it is for the other side to end the stream: this only returns by the error that comes of that.
    """
    # Receipts are taken in while something is awaited.
    listening = asyncio.get_running_loop().create_task(stream.receive_end())
    try:
        with contextlib.suppress(TimeoutError):
            await _send_for_a_phase(stream, max_bytes, check)
        if linger:
            await listening
    finally:
        await end(listening)


async def _send_for_a_phase(stream: MessageStream, max_bytes: int, check: Callable[[], None]) -> None:
    clock = asyncio.get_running_loop().time
    end_s, sent = clock() + PHASE_S, 0
    async with asyncio.timeout(PHASE_S):
        # Frames grow with what went through, so that slow links report soon and fast ones do not drown in frames.
        while sent + (size := _frame_size(sent)) <= max_bytes:
            frames = _frames(sent, size, max_bytes)
            stream.announce(Batch(frames, size))
            for _ in range(frames):
                check()
                await stream.send_bulk(memoryview(_BLANK)[:size])
            sent += frames * size
        await asyncio.sleep(end_s - clock())


async def take_in(stream: MessageStream, max_bytes: int, check: Callable[[], None]) -> None:
    """Receive what `fill` sends until the stream breaks off. Raises `ProtocolError` if it is more than `max_bytes`."""
    target, received = memoryview(bytearray(FRAME_SIZES[-1])), 0
    while True:
        batch = await stream.receive(Batch)
        received += batch.frames * batch.size
        if received > max_bytes:
            raise ProtocolError("a probe of too many bytes", peer=stream.peer)
        for _ in range(batch.frames):
            check()
            await stream.receive_bulk_into(target[: batch.size])


def _frame_size(sent: int) -> int:
    return max([size for size in FRAME_SIZES if GROWTH * size <= sent], default=FRAME_SIZES[0])


def _frames(sent: int, size: int, max_bytes: int) -> int:
    """How many frames of this size go until a larger one may, or all is sent."""
    until = min([GROWTH * larger for larger in FRAME_SIZES if larger > size] + [max_bytes])
    return max(1, min((until - sent) // size, MOST_FRAMES))
