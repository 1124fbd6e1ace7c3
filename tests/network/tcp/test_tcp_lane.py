"""The pool of TCP connections beside an iroh connection, alone: what it does with one that comes late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minga.network.interface import PeerId, Stream
from minga.network.tcp import bulk_lane
from minga.network.tcp.bulk_lane import (
    DIALLED_OPENS,
    DIALLER_OPENS,
    IDLE_S,
    LINGER_S,
    MAX_CHANNELS,
    OFF_S,
    STALL_S,
    DialRequest,
    LaneOffer,
    TcpLane,
    decode,
    encode,
)
from minga.network.tcp.listener import Certificate
from tests.worlds.swarm_tools import virtually

PEER = PeerId("b" * 64)
CERTIFICATE = Certificate(PEER).der


class Channel:
    """A connection that does nothing."""

    lost: str | None = None
    ended_there = False
    bytes_sent = bytes_received = arrived_bytes = 0
    on_readable: Any = None
    on_lost: Any = None

    def welcome(self, word: bytes) -> Channel:
        return self

    def use(self, *, busy: bool) -> None:
        pass

    def abort(self) -> None:
        self.lost = "it was aborted"
        self.on_lost()


class Host:
    """An iroh connection; `asked` is called when the other side is asked to dial."""

    peer_id = PEER

    def __init__(self, asked: Callable[[], object]) -> None:
        self._asked = asked
        self.streams: list[Stream] = []

    def explain(self, what: str) -> Any:
        return RuntimeError(what)

    def remote_ip(self) -> None:
        return None

    @property
    def round_trip_s(self) -> float:
        return 0.0

    async def send_control(self, body: bytes) -> None:
        if isinstance(decode(body, PEER), DialRequest):
            self._asked()

    def arrived(self, stream: Stream) -> None:
        self.streams.append(stream)

    def wonder(self) -> None:
        raise NotImplementedError("no connection is ended by the system of the other side")


def lane(asked: Callable[[], object]) -> TcpLane:
    """A lane that cannot dial, and has heard the other side's offer."""
    listener: Any = SimpleNamespace(
        port=1, certificate=SimpleNamespace(der=b"x"), invite=lambda *_: None, forget=lambda *_: None
    )
    made = TcpLane(Host(asked), listener)
    made.heard(encode(LaneOffer(0, CERTIFICATE, "0" * 32)))
    return made


def come(made: TcpLane) -> Channel:
    """The other side dials."""
    channel: Any = Channel()
    assert made._adopt(channel, DIALLED_OPENS)
    return channel  # type: ignore[no-any-return]


def test_a_connection_that_comes_in_the_moment_of_the_timeout_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        loop, came = asyncio.get_running_loop(), []

        def stand_still() -> None:
            time.sleep(0.3)  # the timeout is due in the same turn of the loop in which it comes
            loop.call_soon(lambda: came.append(come(made)))

        made = lane(lambda: loop.call_later(0.05, stand_still))
        stream = await made.open()
        assert stream is not None
        assert [stream._channel] == came

    asyncio.run(main())


def test_a_stream_does_not_wait_for_a_connection_that_takes_long_but_the_next_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 0.05)

    async def main() -> None:
        asked: list[None] = []
        made = lane(lambda: asked.append(None))
        assert await made.open() is None
        assert await made.open() is None, "at once, now that it is known to take long"
        late = come(made)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream = await made.open()
        assert stream is not None
        assert stream._channel is late
        assert len(asked) == 2

    asyncio.run(main())


def test_a_stream_does_not_wait_for_tcp_when_the_other_side_ended_its_idle_connection() -> None:
    async def main() -> None:
        asked: list[Channel] = []
        made = lane(lambda: asked.append(come(made)))
        stream = await made.open()
        assert stream is not None
        (channel,) = asked
        made.released(stream, channel, clean=True, stalled_s=0.0)  # type: ignore[arg-type]
        channel.abort()  # what the system of a process that died does
        async with asyncio.timeout(0.01):
            assert await made.open() is None
        await asyncio.sleep(0.01)
        assert await made.open() is not None, "it lives: it dialled again meanwhile"

    asyncio.run(main())


def test_an_idle_connection_that_this_side_ended_says_nothing_about_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "IDLE_S", 0.01)

    async def main() -> None:
        made = lane(lambda: asyncio.get_running_loop().call_later(0.02, come, made))
        stream = await made.open()
        assert stream is not None
        made.released(stream, stream._channel, clean=True, stalled_s=0.0)
        await asyncio.sleep(0.02)
        assert await made.open() is not None

    asyncio.run(main())


@pytest.mark.parametrize("last_ended_there", [False, True])
def test_the_end_of_the_other_process_is_thought_of_when_no_connection_is_left(last_ended_there: bool) -> None:
    async def main() -> None:
        made = lane(lambda: come(made))
        wondered: list[None] = []
        made._host.wonder = lambda: wondered.append(None)  # type: ignore[method-assign]
        first, second = await made.open(), await made.open()
        assert first is not None
        assert second is not None
        first._channel.ended_there = True  # as with a stream that the other side resets
        first._channel.abort()
        assert not wondered
        second._channel.ended_there = last_ended_there  # or this side gives up what it can no more use
        second._channel.abort()
        assert len(wondered) == 1
        third = await made.open()
        assert third is not None
        third._channel.abort()
        assert len(wondered) == 1, "this side ended it, and nothing else was there"

    asyncio.run(main())


@virtually
async def test_what_was_finished_is_not_cut_off_when_tcp_is_turned_off() -> None:
    """The last of it may be on its way to a process that was stopped, and is to read it yet."""
    made = lane(lambda: come(made))
    idle, stalled = await made.open(), await made.open()
    assert idle is not None
    assert stalled is not None
    answering: Any = Channel()
    assert made._adopt(answering, DIALLER_OPENS)
    answering.on_readable()
    [answer] = made._host.streams  # type: ignore[attr-defined]
    made.released(idle, idle._channel, clean=True, stalled_s=0.0)
    made.released(stalled, stalled._channel, clean=False, stalled_s=2 * STALL_S)
    made.released(answer, answering, clean=True, stalled_s=0.0)
    assert (idle._channel.lost, answering.lost) == (None, None)
    assert await made.open() is None
    await asyncio.sleep(LINGER_S + 1.0)
    assert idle._channel.lost is not None
    assert answering.lost is None
    await asyncio.sleep(OFF_S - LINGER_S)
    assert await made.open() is not None


@virtually
async def test_what_is_idle_when_tcp_is_turned_off_is_closed_in_time_whatever_stalls_after_that() -> None:
    made = lane(lambda: come(made))
    idle, first, second = await made.open(), await made.open(), await made.open()
    assert idle is not None
    assert first is not None
    assert second is not None
    made.released(idle, idle._channel, clean=True, stalled_s=0.0)
    made.released(first, first._channel, clean=False, stalled_s=2 * STALL_S)
    await asyncio.sleep(LINGER_S - 1.0)
    made.released(second, second._channel, clean=False, stalled_s=2 * STALL_S)
    assert idle._channel.lost is None
    await asyncio.sleep(2.0)
    assert idle._channel.lost is not None


@virtually
async def test_a_connection_that_its_opener_lost_without_a_word_makes_room_for_another() -> None:
    made = lane(lambda: None)

    def is_taken(channel: Channel) -> bool:
        return made._adopt(channel, DIALLER_OPENS)  # type: ignore[arg-type]

    channels = [Channel() for _ in range(MAX_CHANNELS + 2)]
    first, second, *others, last = channels
    assert all(map(is_taken, [first, second, *others[:-1]]))
    first.on_readable()  # a stream begins on it
    assert is_taken(others[-1])
    assert [channel.lost is None for channel in channels[:-1]] == [True, False, *[True] * len(others)]
    for channel in others:
        channel.on_readable()
    assert not is_taken(last)
    for stream in made._host.streams:  # type: ignore[attr-defined]
        made.released(stream, stream._channel, clean=True, stalled_s=0.0)
    await asyncio.sleep(1.9 * IDLE_S)
    assert first.lost is None
    first.on_readable()
    await asyncio.sleep(IDLE_S)
    assert first.lost is None
    assert all(channel.lost is not None for channel in others)
    assert is_taken(last)
