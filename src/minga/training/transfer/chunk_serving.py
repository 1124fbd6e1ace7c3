"""A donor's side of a download: it sends the chunks that are asked for on one stream, until an empty request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from minga.core.errors import ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.training.transfer.messages import CHUNK_TIMEOUT_S, MAX_HELD, DownloadOpened, TakeChunks, timely


async def serve_chunks(
    stream: MessageStream,
    peer: PeerId,
    chunk_count: int,
    read: Callable[[int], Awaitable[memoryview]],
    sent: Callable[[int], None] = lambda _: None,
) -> None:
    """Send what `peer` takes of `chunk_count` chunks; `read` gives one of them, `sent` hears of it afterwards.

    Raises `ProtocolError` for chunks that do not exist or are asked for too often, `RejectedError` if `peer` asks for
    nothing for `CHUNK_TIMEOUT_S`, `SilentError` if it takes nothing for as long, and what `read` raises.
    """
    await stream.send(DownloadOpened())
    # Chunks may be asked for again after a dropped connection, but not for ever.
    left = 2 * chunk_count + MAX_HELD
    while indices := (await _next_take(stream, peer)).indices:
        left -= len(indices)
        if max(indices) >= chunk_count or left < 0:
            raise ProtocolError("asked for chunks that do not exist, or too often", peer=peer)
        for index in indices:
            await timely(stream.send_bulk(await read(index)), peer, "took no chunk")
            sent(index)


async def send_pages(stream: MessageStream, data: memoryview, page_bytes: int, peer: PeerId) -> None:
    """Send `data` as bulk frames of at most `page_bytes`. Raises `SilentError` if `peer` does not take one."""
    for start in range(0, data.nbytes, page_bytes):
        await timely(stream.send_bulk(data[start : start + page_bytes]), peer, "took no page")


async def _next_take(stream: MessageStream, peer: PeerId) -> TakeChunks:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await stream.receive(TakeChunks)
    except TimeoutError as error:
        raise RejectedError("nothing was asked for any more", code=RefusalCode.IDLE, peer=peer) from error
