"""A stream that keeps to the caps of its node's link."""

from __future__ import annotations

from collections.abc import Callable

from minga.network.bandwidth.access_link import AccessLink
from minga.network.interface import Buffer, Stream
from minga.network.meta_bytes import byte_view


class ShapedStream:
    """Writes to and reads from `stream` as the caps of `access_link` allow."""

    def __init__(self, stream: Stream, access_link: AccessLink) -> None:
        self.is_held = False
        """Whether nothing is read because of this side's own cap, so that the other side's silence means nothing."""
        self._stream, self._access_link = stream, access_link

    async def write(self, data: Buffer, *, urgent: bool) -> None:
        """Send all of `data`; urgent bytes go before others, on all streams of the node."""
        pacer = self._access_link.upload
        if pacer.rate is None:
            await self._stream.write(data)
            return
        view = byte_view(data)
        while view.nbytes:
            piece = view[: pacer.piece_bytes]
            await pacer.take(piece.nbytes, urgent=urgent)
            await self._stream.write(piece)
            view = view[piece.nbytes :]

    def write_now(self, data: bytes) -> bool:
        """Send a few bytes if neither a cap nor the transport makes them wait; whether it did."""
        return self._access_link.upload.rate is None and self._stream.write_now(data)

    async def read_into(
        self, target: memoryview, came: Callable[[int], None], filled: Callable[[int], None] | None = None
    ) -> None:
        """Fill `target` with bulk bytes; `came` is called repeatedly with the number of bytes that arrived, and
        `filled` with that of bytes that are in their place.
        """
        pacer = self._access_link.download
        while pacer.rate is not None and target.nbytes:
            piece = target[: pacer.piece_bytes]
            self.is_held = True
            try:
                await pacer.take(piece.nbytes)
            finally:
                self.is_held = False
            came(0)
            await self._stream.read_into(piece, came, filled)
            target = target[piece.nbytes :]
        if target.nbytes:
            await self._stream.read_into(target, came, filled)
