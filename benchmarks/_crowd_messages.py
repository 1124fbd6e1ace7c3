"""What a call into the iroh library costs, and a request with its answer: over new and open streams, and over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable

from minga.core.errors import RemoteError
from minga.network.interface import Connection, Stream
from minga.network.iroh.connection import IrohConnection
from minga.network.iroh.network import IrohNetwork, NetworkSettings

CALLS, REQUESTS, STREAMS = 10_000, 2_000, 500
MESSAGE = bytes(100)


def message_costs() -> dict[str, float]:
    """Processor time in microseconds, of all threads of one process that has both ends."""
    return asyncio.run(_costs())


async def _costs() -> dict[str, float]:
    here, there = [await IrohNetwork.open(secrets.token_bytes(32), NetworkSettings(host="127.0.0.1")) for _ in "ab"]
    near, far = await asyncio.gather(here.connect(there.address), there.accept())
    assert isinstance(near, IrohConnection)
    serving = asyncio.ensure_future(_serve(far))
    try:
        begun_s = _used_s()
        for _ in range(CALLS):
            near._outgoing.close_reason()
        figures = {"foreign_call_us": 1e6 * (_used_s() - begun_s) / (2 * CALLS)}
        figures["new_stream_us"] = await _cost(STREAMS, lambda: _ask_anew(near))
        for name, bulk in (("open_stream_us", False), ("tcp_us", True)):
            stream = await near.open_stream(bulk=bulk)
            await _ask(stream)
            figures[name] = await _cost(REQUESTS, lambda: _ask(stream))  # noqa: B023  (called within the turn)
    finally:
        serving.cancel()
        await asyncio.gather(here.close(), there.close())
    return {name: round(value, 1) for name, value in figures.items()}


async def _cost(times: int, work: Callable[[], Awaitable[None]]) -> float:
    begun_s = _used_s()
    for _ in range(times):
        await work()
    return 1e6 * (_used_s() - begun_s) / times


async def _ask(stream: Stream) -> None:
    await stream.write(MESSAGE)
    await stream.read_into(memoryview(bytearray(len(MESSAGE))))


async def _ask_anew(connection: Connection) -> None:
    stream = await connection.open_stream()
    await stream.write(MESSAGE)
    await stream.finish()
    await stream.read_into(memoryview(bytearray(len(MESSAGE))))
    await stream.read(1)


async def _serve(connection: Connection) -> None:
    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(_answer(await connection.accept_stream()))


async def _answer(stream: Stream) -> None:
    with contextlib.suppress(RemoteError):
        while said := await stream.read(len(MESSAGE)):
            await stream.write(said)
        await stream.finish()


def _used_s() -> float:
    used = os.times()
    return used.user + used.system
