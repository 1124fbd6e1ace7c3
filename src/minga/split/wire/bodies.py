"""The bytes of tensors on a stream, in pieces, each of which has to come within a minute or so.

A limit for a whole message would have to suit its size, and whoever announced much could hold room and say nothing for
hours. With pieces it has to go on all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from minga.core.errors import SilentError
from minga.network.rpc.stream import MessageStream
from minga.split.wire.messages import TensorHeader
from minga.split.wire.tensors import Body

PIECE_BYTES: Final = 1 << 19
PIECE_S: Final = 60.0

Limit = Callable[[float], AbstractAsyncContextManager[None]]
"""A timeout by seconds, such as that of `KeepaliveTicker`."""


async def send_bodies(stream: MessageStream, bodies: Sequence[Body], limit: Limit, piece_s: float = PIECE_S) -> None:
    """Send the bytes of tensors. Raises `SilentError` if the other side does not read a piece within `piece_s`."""
    for body in bodies:
        view = memoryview(body)
        for start in range(0, view.nbytes, PIECE_BYTES):
            try:
                async with limit(piece_s):
                    await stream.send_bulk(view[start : start + PIECE_BYTES])
            except TimeoutError as error:
                raise SilentError(f"it read nothing for {piece_s:.0f} s", peer=stream.peer) from error


async def receive_bodies(stream: MessageStream, headers: Sequence[TensorHeader], limit: Limit) -> list[Body]:
    """The bytes of tensors whose headers were checked.

    Raises `SilentError` if a piece does not come within `PIECE_S`, and as `MessageStream`.
    """
    bodies: list[Body] = []
    for header in headers:
        body = bytearray(header.size_bytes)
        view = memoryview(body)
        for start in range(0, view.nbytes, PIECE_BYTES):
            try:
                async with limit(PIECE_S):
                    await stream.receive_bulk_into(view[start : start + PIECE_BYTES])
            except TimeoutError as error:
                raise SilentError(
                    f"{PIECE_BYTES} bytes did not come within {PIECE_S:.0f} s", peer=stream.peer
                ) from error
        bodies.append(body)
    return bodies
