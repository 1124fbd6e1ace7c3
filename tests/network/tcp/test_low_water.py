"""Readers of slow lines are woken seldom, and never wait for what does not come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from test_tcp_network import exchange, joined, run

from minga.network.tcp import sealed_channel as low_water
from minga.network.tcp.bulk_lane import TcpStream
from minga.network.tcp.sealed_channel import LowWater

PACKET_BYTES = 1400


class Reader(asyncio.BufferedProtocol):
    """Waits for `missing` bytes, and counts how often it was woken."""

    def __init__(self) -> None:
        self.missing, self.wakes = 0, 0
        self.came = asyncio.Event()
        self._buffer = bytearray(1 << 20)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.low_water = LowWater(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self.wakes += 1
        self.missing -= size
        if self.missing:
            self.low_water.came(size, self.missing)
        self.came.set()

    def expect(self, size: int) -> None:
        self.missing = size
        self.low_water.begin(size)

    async def until(self, missing: int) -> None:
        while self.missing > missing:
            self.came.clear()
            await self.came.wait()


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Reader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = Reader()
    server = await loop.create_server(lambda: reader, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        while not hasattr(reader, "low_water"):
            await asyncio.sleep(0.01)
        yield reader, writer
    finally:
        writer.close()
        server.close()


async def dribble(writer: asyncio.StreamWriter, packets: int, pause_s: float) -> None:
    for _ in range(packets):
        writer.write(bytes(PACKET_BYTES))
        await asyncio.sleep(pause_s)


def test_packets_of_a_large_frame_do_not_wake_the_reader_one_by_one() -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            for _ in range(2):
                reader.expect(100 * PACKET_BYTES)
                await dribble(writer, 100, 0.01)
                await reader.until(0)
                reader.low_water.end()
            assert reader.wakes < 100, "with 200 packets"

    run(scenario)


def test_a_line_that_gets_slower_is_noticed() -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            size = 400 * PACKET_BYTES
            reader.expect(size)
            await dribble(writer, 100, 0.002)
            await reader.until(size - 90 * PACKET_BYTES)
            await asyncio.sleep(0.05)
            writer.write(bytes(10))
            await reader.until(size - 100 * PACKET_BYTES - 10)  # less than the mark, and nothing more comes
            reader.low_water.end()

    run(scenario)


class Slow:
    """Stands in for a transport, and sends what is written in small pieces."""

    def __init__(self, transport: asyncio.Transport, rng: random.Random) -> None:
        self._transport, self._rng = transport, rng
        self._waiting = bytearray()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def write(self, data: bytes) -> None:
        self._waiting += data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def _run(self) -> None:
        while True:
            size = self._rng.randrange(1, 2 * PACKET_BYTES)
            self._transport.write(bytes(self._waiting[:size]))
            del self._waiting[:size]
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(2))
def test_nobody_waits_for_more_than_is_certain_to_come(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    marks: list[int] = []
    original = LowWater._set

    def noted(self: LowWater, missing: int) -> None:
        original(self, missing)
        marks.append(self._mark)

    monkeypatch.setattr(LowWater, "_set", noted)
    monkeypatch.setattr(low_water, "SLOWER_S", 1e9)  # else it would help out

    async def scenario() -> None:
        async with joined() as pair:
            ours, theirs = await exchange(pair.outgoing, pair.incoming)
            assert isinstance(ours, TcpStream)
            channel = ours._channel
            assert isinstance(channel._transport, asyncio.Transport)
            channel._transport = slow = Slow(channel._transport, rng)  # type: ignore[assignment]
            for _ in range(12):
                data = os.urandom(rng.choice([100, 5_000, 17_000, 40_000]))
                target = bytearray(len(data))
                await ours.write(data)
                async with asyncio.timeout(20.0):
                    await theirs.read_into(memoryview(target))
                assert target == data
            slow._task.cancel()

    run(scenario)
    assert max(marks) > 1
