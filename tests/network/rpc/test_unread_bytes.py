"""What a stream on a carrier holds for a reader that is not there: about what came, whatever frames it came in."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from minga.network.backlog import Backlog
from minga.network.interface import PeerId
from minga.network.rpc.keepalive import KeepaliveTicker, LastHeard
from minga.network.rpc.multiplexer import CREDIT, DATA, READ_BYTES, Multiplexer, Substream, pack


class Carrier:
    """What the hostile side sends; it never reads."""

    is_detour = False

    def __init__(self, reads: list[bytes]) -> None:
        self.reads = reads

    async def read(self, max_bytes: int) -> bytes:
        if not self.reads:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        assert len(self.reads[0]) <= max_bytes
        return bytes(bytearray(self.reads.pop(0)))  # memory of its own, as what comes from a socket has

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def reset(self) -> None:
        pass


def tiny_frames() -> list[bytes]:
    frame = pack(DATA, 2, 1) + b"x"
    return [frame * (READ_BYTES // len(frame))] * 16  # 58,000 bytes of the window


def one_in_each_read() -> list[bytes]:
    frame, filling = pack(DATA, 2, 1) + b"x", pack(CREDIT, 4, 1)
    read = frame + filling * ((READ_BYTES - len(frame)) // len(filling))
    return [read] * 48  # 48 bytes of the window, of reads that hold half as much again as may be held


@pytest.mark.parametrize("make", [tiny_frames, one_in_each_read])
def test_unread_bytes_of_a_stream_cost_about_their_number(make: object) -> None:
    async def main() -> tuple[int, int]:
        reads = make()  # type: ignore[operator]
        arrived: list[Substream] = []
        carrier = Carrier(reads)
        multiplexer = Multiplexer(
            carrier,  # type: ignore[arg-type]
            PeerId("a" * 64),
            KeepaliveTicker(),
            LastHeard(),
            Backlog(),
            arrived.append,
            opened_here=False,
        )
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
