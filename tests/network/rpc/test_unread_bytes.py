"""What a stream on a carrier holds for a reader that is not there: about what came, whatever frames it came in."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import Callable

import pytest

from minga.core.errors import UnreachableError
from minga.network.backlog import Backlog
from minga.network.interface import PeerId
from minga.network.rpc.keepalive import KeepaliveTicker, LastHeard
from minga.network.rpc.multiplexer import (
    DATA,
    LAST,
    MOST_WAITING_PIECES,
    PIECE_BYTES,
    READ_BYTES,
    WINDOW_BYTES,
    Multiplexer,
    Substream,
    pack,
)
from minga.network.rpc.node import MAX_STREAMS_PER_PEER


class Carrier:
    """What the hostile side sends; it never reads."""

    is_detour = False

    def __init__(self, reads: list[bytes]) -> None:
        self.reads = reads

    async def read(self, max_bytes: int) -> bytes:
        await asyncio.sleep(0)
        while not self.reads:
            await asyncio.sleep(0)
        assert len(self.reads[0]) <= max_bytes
        return bytes(bytearray(self.reads.pop(0)))  # memory of its own, as what comes from a socket has

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def reset(self) -> None:
        pass


def tiny_frames() -> list[bytes]:
    frame = pack(DATA, 2, 1) + b"x"
    return [frame * (READ_BYTES // len(frame))] * 6  # 22,000 bytes of the window


def one_in_each_read() -> list[bytes]:
    filling = pack(DATA, 0, PIECE_BYTES) + bytes(PIECE_BYTES)  # late words on a stream that has ended
    return [pack(DATA, 2, 1) + b"x" + filling] * 160  # of reads that hold twice as much as may be held


def multiplexer_on(carrier: Carrier, arrived: Callable[[Substream], object]) -> Multiplexer:
    return Multiplexer(
        carrier,  # type: ignore[arg-type]
        PeerId("a" * 64),
        KeepaliveTicker(),
        LastHeard(),
        Backlog(),
        arrived,  # type: ignore[arg-type]
        opened_here=False,
    )


@pytest.mark.parametrize("make", [tiny_frames, one_in_each_read])
def test_unread_bytes_of_a_stream_cost_about_their_number(make: object) -> None:
    async def main() -> tuple[int, int]:
        reads = make()  # type: ignore[operator]
        arrived: list[Substream] = []
        carrier = Carrier(reads)
        multiplexer = multiplexer_on(carrier, arrived.append)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        running = asyncio.ensure_future(multiplexer.run())
        while carrier.reads and not running.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        unread = multiplexer.backlog.total_bytes
        if running.done():
            running.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(arrived) == 1
        return held, unread

    held, unread = asyncio.run(asyncio.wait_for(main(), 60))
    assert held < (1 << 20) + 2 * unread, f"{held} bytes held for {unread} unread ones"


def test_who_reads_nothing_loses_its_carrier_by_more_streams_than_an_honest_peer_has_and_not_by_these() -> None:
    async def main() -> None:
        serving: set[asyncio.Task[None]] = set()

        async def serve(stream: Substream) -> None:
            with contextlib.suppress(UnreachableError):
                while await stream.read(READ_BYTES):
                    pass
                await stream.finish()

        def take(stream: Substream) -> None:
            serving.add(task := asyncio.ensure_future(serve(stream)))
            task.add_done_callback(serving.discard)

        numbers = range(0, 2 * MAX_STREAMS_PER_PEER, 2)
        pieces = WINDOW_BYTES // PIECE_BYTES
        carrier = Carrier([])
        multiplexer = multiplexer_on(carrier, take)
        running = asyncio.ensure_future(multiplexer.run())
        for kind in [*[DATA] * (pieces - 1), LAST]:
            carrier.reads += [pack(kind, number, PIECE_BYTES) + bytes(PIECE_BYTES) for number in numbers]
            while carrier.reads:
                await asyncio.sleep(0)
        while serving:
            await asyncio.sleep(0)
        assert not multiplexer.is_lost

        for first in range(numbers.stop, numbers.stop + 4 * MOST_WAITING_PIECES, 2 * MAX_STREAMS_PER_PEER):
            ends = (pack(LAST, number) for number in range(first, first + 2 * MAX_STREAMS_PER_PEER, 2))
            carrier.reads.append(b"".join(ends))
        while carrier.reads and not running.done():
            await asyncio.sleep(0)
        assert running.done()
        assert multiplexer.is_lost

    asyncio.run(main())
