"""Conformance checks of `Stream`: order, integrity, ends, resets and back-pressure."""

from __future__ import annotations

import asyncio

from minga.core.errors import ProtocolError, UnreachableError
from minga.network.interface import Connection, Stream
from minga.testing.suite import (
    Check,
    MakeNetwork,
    check,
    expect,
    expect_error,
    expect_pending,
    joined,
    pattern,
    read_all,
    stream_pair,
)

LARGE_BYTES = 8 << 20
STUFFED_BYTES = 64 << 20
CHUNK_BYTES = 256 << 10


async def _write_chunks(stream: Stream, total: int, taken: list[int] | None = None) -> None:
    chunk = pattern(CHUNK_BYTES)
    for _ in range(total // CHUNK_BYTES):
        await stream.write(chunk)
        if taken is not None:
            taken.append(CHUNK_BYTES)


@check
async def check_both_directions(make: MakeNetwork) -> None:
    """The dialler and the acceptor both open streams, and each stream carries bytes both ways."""
    pair = await joined(make)
    for opener, other in ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
        near, far = await stream_pair(opener, other)
        for writer, reader in ((near, far), (far, near)):
            await writer.write(b"")
            await writer.write(b"hello")
            expect(await read_all(reader, 5) == b"hello", "a short message was changed on its way")
            for word in (b"one", b"two"):
                if not writer.write_now(word):
                    await writer.write(word)
            await writer.write(b"three")
            expect(await read_all(reader, 11) == b"onetwothree", "what was written at once came in another order")


@check
async def check_large_transfer(make: MakeNetwork) -> None:
    """8 MiB arrive complete and in order in both directions at once, written in one piece and in small ones."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    body, reply = pattern(LARGE_BYTES, 1), pattern(LARGE_BYTES, 2)
    received, answered = bytearray(LARGE_BYTES), bytearray(LARGE_BYTES)

    async def write_in_pieces() -> None:
        for start in range(0, LARGE_BYTES, 100_003):
            await far.write(reply[start : start + 100_003])

    await asyncio.gather(
        near.write(memoryview(body)),
        far.read_into(memoryview(received)),
        write_in_pieces(),
        near.read_into(memoryview(answered)),
    )
    expect(received == body, "a large body written in one piece was changed on its way")
    expect(answered == reply, "a large body written in pieces was changed on its way")


@check
async def check_buffer_reuse(make: MakeNetwork) -> None:
    """Once `write` returned, the caller may overwrite its buffer."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    buffer = bytearray()
    for fill in range(8):
        buffer[:] = bytes([fill]) * CHUNK_BYTES
        reading = asyncio.ensure_future(read_all(far, CHUNK_BYTES))
        await near.write(buffer)
        buffer[:] = b"\xff" * CHUNK_BYTES
        expect(await reading == bytes([fill]) * CHUNK_BYTES, "bytes changed after write had returned")


@check
async def check_partial_read(make: MakeNetwork) -> None:
    """`read` returns what is there, never more than asked, and keeps the rest."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    await near.write(b"abcdef")
    expect(await asyncio.wait_for(read_all(far, 6), 30) == b"abcdef", "six bytes did not arrive")
    await near.write(b"0123456789")
    first = await far.read(4)
    expect(1 <= len(first) <= 4, f"read(4) returned {len(first)} bytes")
    rest = await read_all(far, 10 - len(first))
    expect(first + rest == b"0123456789", "a partial read lost or doubled bytes")
    await near.write(b"xy")
    some = await far.read(1 << 20)
    expect(some in (b"x", b"xy"), "read waited for, or made up, more than was there")


@check
async def check_read_into(make: MakeNetwork) -> None:
    """`read_into` fills slices of one buffer exactly, reports progress, and which bytes are in their place, and raises
    on an early end.
    """
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    body = pattern(1 << 20)
    target, told = bytearray(2 << 20), list[int]()
    view = memoryview(target)
    placed = 0

    def filled(size: int) -> None:
        nonlocal placed
        there = target[7 + placed : 7 + placed + size]
        expect(there == body[placed : placed + size], "read_into told of bytes that were not in their place")
        placed += size

    await asyncio.gather(
        near.write(body),
        far.read_into(view[7 : 7 + 500_000], told.append, filled),
    )
    await far.read_into(view[500_007 : 7 + len(body)])
    await far.read_into(view[0:0])
    expect(bytes(target[7 : 7 + len(body)]) == body, "read_into put wrong bytes into its target")
    expect(not any(target[:7]) and not any(target[7 + len(body) :]), "read_into wrote outside of its target")
    expect(sum(told) == 500_000 and min(told) > 0, "read_into did not tell each byte once to progress")
    expect(placed == 500_000, "read_into did not tell each byte once when it was in its place")
    await near.write(b"short")
    await near.finish()
    await expect_error(ProtocolError, far.read_into(view[:6]), "read_into beyond the end of the stream")


@check
async def check_half_close(make: MakeNetwork) -> None:
    """After `finish` the other side reads the rest and then the end, and can still write back."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    await near.write(b"question")
    await near.finish()
    expect(await read_all(far, 8) == b"question", "bytes before the end were changed")
    for _ in range(2):
        expect(await far.read(10) == b"", "no end of stream after finish")
    await far.write(pattern(CHUNK_BYTES))
    await far.finish()
    expect(await read_all(near, CHUNK_BYTES) == pattern(CHUNK_BYTES), "the answer after a half close was changed")
    expect(await near.read(10) == b"", "no end of stream in the other direction")


@check
async def check_reset(make: MakeNetwork) -> None:
    """A reset ends pending and later operations on both sides, and leaves the connection usable."""
    pair = await joined(make)
    for opener, other in ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
        near, far = await stream_pair(opener, other)
        own_read = asyncio.ensure_future(near.read(1))
        own_write = asyncio.ensure_future(_write_chunks(near, STUFFED_BYTES))
        await expect_pending(own_read, "read on a stream that carries nothing")
        await near.reset()
        await near.reset()
        await expect_error(UnreachableError, own_read, "a pending read on a stream reset by this side")
        await expect_error(UnreachableError, own_write, "a pending write on a stream reset by this side")
        await expect_error(UnreachableError, _read_to_end(far), "reading a stream reset by the other side")
        await expect_error(UnreachableError, _write_chunks(far, STUFFED_BYTES), "writing to a stream that was reset")
        await far.reset()
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    pending = asyncio.ensure_future(far.read(1))
    await near.reset()
    await expect_error(UnreachableError, pending, "a pending read on a stream reset by the other side")
    await stream_pair(pair.outgoing, pair.incoming)


async def _read_to_end(stream: Stream) -> None:
    while await stream.read(CHUNK_BYTES):
        pass


@check
async def check_back_pressure(make: MakeNetwork) -> None:
    """A writer waits for a reader that does not read, without disturbing other streams, and goes on later."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    quiet, quiet_far = await stream_pair(pair.outgoing, pair.incoming)
    taken: list[int] = []
    writing = asyncio.ensure_future(_write_chunks(near, STUFFED_BYTES, taken))
    await expect_pending(writing, f"writing {STUFFED_BYTES} bytes that nobody reads", seconds=1.5)
    for writer, reader in ((quiet, quiet_far), (quiet_far, quiet)):
        await writer.write(b"ping")
        expect(await read_all(reader, 4) == b"ping", "a stuffed stream disturbed another")
    expect(not writing.done() and sum(taken) < STUFFED_BYTES, "a writer got ahead of its reader without bound")
    target = bytearray(CHUNK_BYTES)
    for _ in range(STUFFED_BYTES // CHUNK_BYTES):
        await far.read_into(memoryview(target))
        expect(target == pattern(CHUNK_BYTES), "bytes were changed under back-pressure")
    await writing


@check
async def check_many_streams(make: MakeNetwork) -> None:
    """Fifty streams at once, opened by both sides, do not mix their bytes."""
    pair = await joined(make)
    streams = 50

    async def ask(connection: Connection, number: int) -> None:
        stream = await connection.open_stream()
        body = pattern(1000 + 997 * number, number)
        await stream.write(len(body).to_bytes(4, "big") + body)
        expect(await read_all(stream, len(body)) == body, f"the echo of stream {number} is wrong")
        await stream.finish()

    async def echo(stream: Stream) -> None:
        size = int.from_bytes(await read_all(stream, 4), "big")
        await stream.write(await read_all(stream, size))
        await stream.finish()
        expect(await stream.read(1) == b"", "more came than was sent")

    async def serve(connection: Connection) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(streams // 2):
                group.create_task(echo(await connection.accept_stream()))

    async with asyncio.TaskGroup() as group:
        for connection in (pair.outgoing, pair.incoming):
            group.create_task(serve(connection))
            for number in range(streams // 2):
                group.create_task(ask(connection, number))


@check
async def check_cancelled_read(make: MakeNetwork) -> None:
    """A cancelled read loses nothing, and a cancelled `read_into` or write leaves the connection usable."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    for _ in range(3):
        pending = asyncio.ensure_future(far.read(100))
        await expect_pending(pending, "a read on a stream that carries nothing")
        await _cancel(pending)
    await near.write(b"after")
    expect(await read_all(far, 5) == b"after", "bytes after a cancelled read got lost")
    filling = asyncio.ensure_future(far.read_into(memoryview(bytearray(100))))
    await expect_pending(filling, "read_into on a stream that carries nothing")
    await _cancel(filling)
    writing = asyncio.ensure_future(_write_chunks(near, STUFFED_BYTES))
    await expect_pending(writing, "writing much that nobody reads")
    await _cancel(writing)
    await near.reset()
    await stream_pair(pair.outgoing, pair.incoming)


@check
async def check_cancelled_beginning(make: MakeNetwork) -> None:
    """Whenever the first write on a stream is cancelled, the reset that follows is no end in good order."""
    pair = await joined(make)
    for opener, other in ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
        endings: list[asyncio.Future[bytes]] = []
        accepting = asyncio.ensure_future(_note_endings(other, endings))
        for turns in range(30):
            near = await opener.open_stream()
            writing = asyncio.ensure_future(near.write(b"half of it"))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
            await near.reset()
        whole = await opener.open_stream()
        await whole.write(b"all of it")
        await whole.finish()
        expect(await whole.read(1) == b"", "a stream that was written and finished was not answered")
        accepting.cancel()
        read = {ending.result() for ending in endings if ending.done() and ending.exception() is None}
        expect(read == {b"all of it"}, f"the other side saw streams that were reset end in good order: {read}")
        for ending in endings:
            ending.cancel()


async def _note_endings(connection: Connection, endings: list[asyncio.Future[bytes]]) -> None:
    async def read(stream: Stream) -> bytes:
        body = b""
        while data := await stream.read(100):
            body += data
        await stream.finish()
        return body

    while True:
        endings.append(asyncio.ensure_future(read(await connection.accept_stream())))


async def _cancel(task: asyncio.Future[object] | asyncio.Future[bytes] | asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    expect(task.cancelled(), "an operation swallowed its cancellation")


STREAM_CHECKS: tuple[Check, ...] = (
    check_both_directions,
    check_large_transfer,
    check_buffer_reuse,
    check_partial_read,
    check_read_into,
    check_half_close,
    check_reset,
    check_back_pressure,
    check_many_streams,
    check_cancelled_read,
    check_cancelled_beginning,
)
