"""Streams on a carrier are like any others, and what is said on them at once leaves in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from minga.core.errors import ProtocolError, UnreachableError
from minga.network.backlog import Backlog
from minga.network.interface import Address, Buffer, Connection, Network, PeerId, Stream
from minga.network.rpc.keepalive import LEAST_TICKS, MOST_TICKS, PULSE_S, STREAMS_PER_TICK, KeepaliveTicker, LastHeard
from minga.network.rpc.multiplexer import (
    CREDIT,
    DATA,
    LAST,
    LAZY_S,
    MOST_WAITING_BYTES,
    PIECE_BYTES,
    PULSE,
    RESET,
    WINDOW_BYTES,
    FrameParser,
    Multiplexer,
    pack,
)
from minga.network.virtual.internet import HostSettings, VirtualInternet
from minga.simulation import run_virtual
from minga.testing import MakeNetwork
from minga.testing.stream_suite import STREAM_CHECKS
from tests.worlds.swarm_tools import virtually

PEER = PeerId("ab" * 32)


class MultiplexedConnection:
    """A connection all of whose streams are on one carrier."""

    def __init__(self, inner: Connection, first: Stream, *, dialled: bool) -> None:
        self.inner = inner
        self.arrived: asyncio.Queue[Stream | None] = asyncio.Queue()
        self.multiplexer = Multiplexer(
            first,
            inner.peer_id,
            KeepaliveTicker(),
            LastHeard(),
            Backlog(),
            self.arrived.put_nowait,
            opened_here=dialled,
        )
        self.task = asyncio.ensure_future(self.multiplexer.run())
        self.task.add_done_callback(lambda _: self.arrived.put_nowait(None))

    async def open_stream(self) -> Stream:
        return self.multiplexer.open()

    async def accept_stream(self) -> Stream:
        if (stream := await self.arrived.get()) is None:
            raise UnreachableError("the connection is gone", peer=self.inner.peer_id)
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MultiplexedNetwork:
    """A network with such connections."""

    def __init__(self, inner: Network) -> None:
        self.inner = inner

    async def connect(self, address: Address) -> Connection:
        connection = await self.inner.connect(address)
        first = await connection.open_stream()
        await first.write(b"!")
        return cast("Connection", MultiplexedConnection(connection, first, dialled=True))

    async def accept(self) -> Connection:
        connection = await self.inner.accept()
        first = await connection.accept_stream()
        assert await first.read(1) == b"!"
        return cast("Connection", MultiplexedConnection(connection, first, dialled=False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def multiplexed(internet: VirtualInternet) -> MakeNetwork:
    async def make(*, dialable: bool = True) -> Network:
        return cast("Network", MultiplexedNetwork(internet.host(HostSettings(latency_s=0.01, dialable=dialable))))

    return make


def test_streams_on_a_carrier_are_like_any_others() -> None:
    async def main() -> None:
        for check in STREAM_CHECKS:
            await check(multiplexed(VirtualInternet(1)))

    run_virtual(main())


class Wire(Stream):
    """One end of a stream that notes each write, and reads what it is fed."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.fed: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def write(self, data: Buffer) -> None:
        await self.is_open.wait()
        self.writes.append(bytes(data))

    async def finish(self) -> None: ...

    async def read(self, max_bytes: int) -> bytes:
        return await self.fed.get()

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        raise NotImplementedError

    async def reset(self) -> None: ...


def multiplexer_on(
    wire: Wire, arrived: list[Stream] | None = None, clockwork: KeepaliveTicker | None = None
) -> Multiplexer:
    found, ticks = [] if arrived is None else arrived, clockwork or KeepaliveTicker()
    return Multiplexer(wire, PEER, ticks, LastHeard(), Backlog(), found.append, opened_here=True)


@virtually
async def test_what_is_said_at_once_leaves_in_one_write() -> None:
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())

    async def say_all(stream: Stream) -> None:
        await stream.write(b"word")
        await stream.finish()

    await asyncio.gather(*(say_all(multiplexer.open()) for _ in range(20)))
    await asyncio.sleep(0.001)
    assert len(wire.writes) == 1
    frames = list(FrameParser().feed(wire.writes[0]))
    assert [(frame.kind, bytes(frame.body)) for frame in frames] == [(LAST, b"word")] * 20
    wire.is_open.clear()
    for number in range(5):  # while a write is under way, what comes gathers
        await multiplexer.open().write(bytes([number]))
        await asyncio.sleep(0)
    wire.is_open.set()
    await asyncio.sleep(0.001)
    assert len(wire.writes) == 3
    running.cancel()


@virtually
async def test_an_end_alone_waits_a_moment_for_company() -> None:
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())
    stream = multiplexer.open()
    await stream.write(b"x")
    await asyncio.sleep(0.001)
    await stream.finish()
    assert stream.number is not None
    await asyncio.sleep(0.001)
    assert len(wire.writes) == 1
    await asyncio.sleep(LAZY_S + 0.01)
    assert wire.writes[1:] == [pack(LAST, stream.number)]
    running.cancel()


@pytest.mark.parametrize(
    "sent",
    [
        pack(PULSE + 1, 3),
        pack(DATA, 3, PIECE_BYTES + 1),
        pack(DATA, 2, 1) + b"x",
        (pack(DATA, 3, PIECE_BYTES) + bytes(PIECE_BYTES)) * (WINDOW_BYTES // PIECE_BYTES + 1),
        pack(LAST, 3) + pack(LAST, 3),
        pack(PULSE, LEAST_TICKS - 1),
        pack(PULSE, MOST_TICKS + 1),
    ],
    ids=["kind", "size", "never opened", "more than the window", "after its end", "no pause", "a long pause"],
)
def test_a_peer_that_breaks_the_rules_of_a_carrier_is_named(sent: bytes) -> None:
    @virtually
    async def main() -> None:
        wire = Wire()
        arrived: list[Stream] = []
        multiplexer = multiplexer_on(wire, arrived)
        running = asyncio.ensure_future(multiplexer.run())
        for start in range(0, len(sent), 1000):
            wire.fed.put_nowait(sent[start : start + 1000])
        with pytest.raises(ProtocolError) as refused:
            await running
        assert refused.value.peer == PEER
        assert multiplexer.is_lost
        with pytest.raises(UnreachableError):
            multiplexer.open()

    main()


@virtually
async def test_late_words_about_streams_that_ended_are_no_offence() -> None:
    wire = Wire()
    arrived: list[Stream] = []
    multiplexer = multiplexer_on(wire, arrived)
    running = asyncio.ensure_future(multiplexer.run())
    mine = multiplexer.open()
    await mine.write(b"x")
    await mine.reset()
    assert mine.number is not None
    late = pack(DATA, mine.number, 1) + b"x" + pack(CREDIT, mine.number, 9) + pack(RESET, mine.number)
    wire.fed.put_nowait(late + pack(RESET, 7) + pack(DATA, 5, 2) + b"hi")
    await asyncio.sleep(0.01)
    assert not running.done()
    assert len(arrived) == 1
    assert await arrived[0].read(10) == b"hi"
    running.cancel()


@virtually
async def test_a_stream_that_is_overtaken_before_its_first_word_gets_the_later_number() -> None:
    """The other side takes what has a lower number than the newest for a late word, and drops it."""
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())
    first, second, third = (multiplexer.open() for _ in range(3))
    await second.write(b"2")
    await first.write(b"1")
    await third.finish()
    await asyncio.sleep(LAZY_S + 0.001)
    frames = list(FrameParser().feed(b"".join(wire.writes)))
    assert [(frame.kind, bytes(frame.body)) for frame in frames] == [(DATA, b"2"), (DATA, b"1"), (LAST, b"")]
    assert [frame.number for frame in frames] == [2, 4, 6]
    running.cancel()


@virtually
async def test_a_stream_that_said_nothing_ends_without_a_word_and_counts_until_then() -> None:
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())
    wire.is_open.clear()
    silent, lost = multiplexer.open(), multiplexer.open()
    multiplexer.outbox.put(bytes(MOST_WAITING_BYTES))
    await asyncio.sleep(0.001)
    multiplexer.outbox.put(bytes(MOST_WAITING_BYTES))
    waiting = asyncio.ensure_future(silent.write(b"never"))
    await asyncio.sleep(0.001)
    await silent.reset()
    wire.is_open.set()
    with pytest.raises(UnreachableError, match="this side reset"):
        await waiting
    await asyncio.sleep(LAZY_S + 0.001)
    assert b"".join(wire.writes) == bytes(2 * MOST_WAITING_BYTES)
    assert not multiplexer.is_idle
    running.cancel()
    with pytest.raises(UnreachableError, match="the carrier"):
        await lost.read(1)
    assert multiplexer.is_idle


@virtually
async def test_whoever_waits_for_credit_hears_of_a_reset_though_the_carrier_is_full() -> None:
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())
    stream = multiplexer.open()
    await stream.write(bytes(WINDOW_BYTES))
    writing = asyncio.ensure_future(stream.write(b"more"))
    await asyncio.sleep(0.001)
    assert stream.number is not None
    wire.is_open.clear()
    for _ in range(2):  # the first of them is being written
        multiplexer.outbox.put(bytes(MOST_WAITING_BYTES))
        await asyncio.sleep(0.001)
    wire.fed.put_nowait(pack(RESET, stream.number))
    await asyncio.sleep(0.001)
    assert writing.done()
    with pytest.raises(UnreachableError, match="the other side reset"):
        await writing
    running.cancel()


@virtually
async def test_streams_that_never_pause_have_their_turns_one_after_the_other() -> None:
    wire = Wire()
    multiplexer = multiplexer_on(wire)
    running = asyncio.ensure_future(multiplexer.run())
    turns: list[int | None] = []

    async def talk() -> None:
        talker = multiplexer.open()
        while True:
            await talker.write(bytes(MOST_WAITING_BYTES))
            talker.may_write(MOST_WAITING_BYTES)
            turns.append(talker.number)

    talking = [asyncio.ensure_future(talk()) for _ in range(3)]
    for _ in range(30):
        wire.is_open.clear()
        await asyncio.sleep(0.01)
        wire.is_open.set()
        await asyncio.sleep(0)
    assert min(turns.count(number) for number in (2, 4, 6)) >= len(turns) // 3 - 1
    for task in (running, *talking):
        task.cancel()


def crowd_on(clockwork: KeepaliveTicker, size: int) -> list[Multiplexer]:
    """Many carriers that each have a stream; none of them runs."""
    crowd = [multiplexer_on(Wire(), clockwork=clockwork) for _ in range(size)]
    for multiplexer in crowd:
        multiplexer.begin_speaking()
    return crowd


def pulses_on(wire: Wire) -> list[int]:
    return [frame.number for write in wire.writes for frame in FrameParser().feed(write) if frame.kind == PULSE]


@virtually
async def test_a_longer_pause_is_made_only_once_the_other_side_was_told_of_it() -> None:
    """It gave up a peer that got many streams while something was on its way to it: no pulse had told it."""
    clockwork, wire = KeepaliveTicker(), Wire()
    multiplexer = multiplexer_on(wire, clockwork=clockwork)
    running = asyncio.ensure_future(multiplexer.run())
    multiplexer.begin_speaking()
    crowd_on(clockwork, 79)
    wire.is_open.clear()
    await multiplexer.open().write(b"on its way")
    await asyncio.sleep(0.001)
    multiplexer.on_tick(2)
    assert multiplexer.pause_ticks == LEAST_TICKS
    wire.is_open.set()
    await asyncio.sleep(0.001)
    assert not pulses_on(wire)
    multiplexer.on_tick(3)
    await asyncio.sleep(0.001)
    assert pulses_on(wire) == [10]
    assert multiplexer.pause_ticks == 10
    running.cancel()


@virtually
async def test_the_streams_of_a_carrier_share_its_pulses() -> None:
    clockwork, wire = KeepaliveTicker(), Wire()
    multiplexer = multiplexer_on(wire, clockwork=clockwork)
    running = asyncio.ensure_future(multiplexer.run())
    crowd = crowd_on(clockwork, 2 * STREAMS_PER_TICK - 1)
    clockwork.start()
    for _ in range(30):
        multiplexer.begin_speaking()
    await asyncio.sleep(10 * PULSE_S + 0.01)
    assert len(pulses_on(wire)) == 5
    await multiplexer.open().write(b"x")
    await asyncio.sleep(PULSE_S)
    assert len(pulses_on(wire)) == 5, "what is written says as much"
    for other in (*[multiplexer] * 30, *crowd):
        other.end_speaking()
    await asyncio.sleep(10 * PULSE_S)
    assert len(pulses_on(wire)) == 5
    clockwork.close()
    running.cancel()


@virtually
async def test_pauses_on_a_carrier_grow_at_once_and_shrink_by_and_by() -> None:
    clockwork, wire = KeepaliveTicker(), Wire()
    multiplexer = multiplexer_on(wire, clockwork=clockwork)
    running = asyncio.ensure_future(multiplexer.run())
    multiplexer.begin_speaking()
    crowd = crowd_on(clockwork, 79)
    multiplexer.on_tick(2)
    await asyncio.sleep(0.001)
    assert pulses_on(wire) == [10]
    wire.fed.put_nowait(pack(PULSE, 12))
    await asyncio.sleep(0.001)
    assert multiplexer.pause_ticks == 12
    for other in crowd:
        other.end_speaking()
    wire.fed.put_nowait(pack(PULSE, LEAST_TICKS))
    for tick in range(12, 200, 12):
        await asyncio.sleep(0.001)
        multiplexer.on_tick(tick)
    await asyncio.sleep(0.001)
    assert pulses_on(wire)[:10] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    running.cancel()
