"""The bytes on a carrier: frames that say to which stream they belong.

A frame is one byte of kind, four bytes of number, two bytes of size (big-endian), and for the first two kinds the body:

    DATA     `size` bytes of stream `number`; the first of them opens it
    LAST     the same, and nothing more comes in this direction
    RESET    both directions of the stream are aborted
    CREDIT   `size` KiB of the stream were read, and as many may follow
    PULSE    still alive, nothing to say; the number is that of ticks until the next one

Streams that the opener of the carrier opens have even numbers, those of the other side odd ones, in ascending order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct(">BIH")
DATA, LAST, RESET, CREDIT, PULSE = range(5)

PIECE_BYTES = 1 << 14
"""Largest body of a frame: so much goes before what another stream has to say."""

WINDOW_BYTES = 1 << 20
"""How many bytes of a stream may be under way or wait to be read: the largest message needs no credit in between."""

CREDIT_BYTES = 1 << 10
"""The unit of a credit."""


class SubstreamFrame(NamedTuple):
    """A frame that came; `size` is that of the body, but for CREDIT."""

    kind: int
    number: int
    size: int
    body: memoryview


def pack(kind: int, number: int, size: int = 0) -> bytes:
    """The header of a frame."""
    return HEADER.pack(kind, number, size)


class FrameParser:
    """Makes frames of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[SubstreamFrame]:
        """The frames that are complete now. Raises `ValueError` for what is none."""
        held = self._rest + data if self._rest else data
        view, at, end = memoryview(held), 0, len(held)
        while end - at >= HEADER.size:
            kind, number, size = HEADER.unpack_from(held, at)
            body_bytes = size if kind in (DATA, LAST) else 0
            if kind > PULSE or body_bytes > PIECE_BYTES:
                raise ValueError(f"a frame of kind {kind} and {size} bytes on a carrier")
            begin = at + HEADER.size
            if end - begin < body_bytes:
                break
            at = begin + body_bytes
            yield SubstreamFrame(kind, number, size, view[begin:at])
        self._rest = held[at:]
