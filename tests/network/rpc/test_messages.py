"""Messages of the wire: whatever comes in is either a valid message or an error that names the sender."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging import messages as wire
from minga.averaging.allreduce import messages as reducing
from minga.averaging.messages import Join, Report
from minga.core.errors import ProtocolError, RejectedError, SilentError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.network.bandwidth.access_link import AccessLink
from minga.network.interface import Address, Buffer, PeerId, Stream
from minga.network.rpc.handshake import Call, Hello
from minga.network.rpc.keepalive import (
    LEAST_TICKS,
    MOST_TICKS,
    PULSE_S,
    STREAMS_PER_TICK,
    KeepaliveTicker,
    LastHeard,
    silence_limit,
)
from minga.network.rpc.reachability import DialMe
from minga.network.rpc.stream import BULK, MAX_MESSAGE_BYTES, MessageStream, Refusal
from tests.worlds.swarm_tools import virtually

PEER = PeerId("ab" * 32)
TYPES = [t for t in vars(wire).values() if isinstance(t, type) and issubclass(t, msgspec.Struct)] + [Hello, Call]


class Tape(Stream):
    """A stream that plays what was recorded, then ends or stays silent for ever."""

    def __init__(self, recorded: bytes, *, ends: bool = True, step: int = 1 << 16) -> None:
        self.left, self.ends, self.step = bytearray(recorded), ends, step
        self.written = bytearray()
        self.was_reset = False
        self.largest_request = 0
        self._wake = asyncio.Event()

    async def write(self, data: Buffer) -> None:
        self.written += data

    async def finish(self) -> None:
        pass

    async def read(self, max_bytes: int) -> bytes:
        if not self.left and not self.ends:
            await self._wake.wait()
            raise UnreachableError("reset")
        part = bytes(self.left[: min(max_bytes, self.step)])
        del self.left[: len(part)]
        return part

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        self.largest_request = max(self.largest_request, target.nbytes)
        done = 0
        while done < target.nbytes:
            part = await self.read(target.nbytes - done)
            if not part:
                raise ProtocolError("the stream ended early", peer=PEER)
            target[done : done + len(part)] = part
            done += len(part)
            if progress is not None:
                progress(len(part))
            if filled is not None:
                filled(len(part))

    async def reset(self) -> None:
        self.was_reset = True
        self._wake.set()


def lines() -> AccessLink:
    return AccessLink(asyncio.get_running_loop().time, lambda: 0.0)


def stream_of(
    recorded: bytes, *, clockwork: KeepaliveTicker | None = None, **options: Any
) -> tuple[MessageStream, Tape]:
    tape = Tape(recorded, **options)
    return MessageStream(tape, PEER, clockwork or KeepaliveTicker(), lambda: None, lines()), tape


def pulse(ticks: int = LEAST_TICKS) -> bytes:
    return b"\x03" + ticks.to_bytes(4, "big")


def a_join() -> Join:
    return Join(
        step=1,
        layout="0" * 32,
        address=Address(PEER),
        aggregates=True,
        computes=True,
        upload=None,
        download=None,
        report=Report(),
    )


def frame(kind: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BI", kind, len(body) if length is None else length) + body


@given(recorded=st.binary(max_size=300), step=st.integers(1, 50), kind=st.sampled_from([*TYPES, None]))
def test_any_bytes_give_a_message_or_an_error_that_names_the_sender(recorded: bytes, step: int, kind: Any) -> None:
    @virtually
    async def main() -> None:
        stream, tape = stream_of(recorded, step=step)
        due = stream.receive(kind) if kind else stream.receive_bulk_into(memoryview(bytearray(16)))
        (outcome,) = await asyncio.gather(due, return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ProtocolError | RejectedError)
            assert outcome.peer == PEER
        else:
            assert isinstance(outcome, kind or type(None))
        assert tape.largest_request <= MAX_MESSAGE_BYTES

    main()


@pytest.mark.parametrize(
    ("length", "outcome"), [(0, 0), (9, 9), (16, 16), (17, "a bulk frame of 17 bytes"), (1 << 31, "bulk")]
)
def test_a_frame_may_be_shorter_than_its_room_but_not_longer(length: int, outcome: int | str) -> None:
    @virtually
    async def main() -> None:
        room = bytearray(16)
        stream, tape = stream_of(frame(BULK, b"\7" * min(length, 20), length), step=4)
        if isinstance(outcome, int):
            assert await stream.receive_bulk_up_to(memoryview(room)) == outcome
            assert room == b"\7" * outcome + b"\0" * (16 - outcome)
        else:
            with pytest.raises(ProtocolError, match=outcome) as refused:
                await stream.receive_bulk_up_to(memoryview(room))
            assert refused.value.peer == PEER
            assert room == bytes(16)
        assert tape.largest_request <= MAX_MESSAGE_BYTES

    main()


@given(data=st.data())
def test_any_value_in_any_field_gives_a_message_or_an_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    leaf = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=70)
    leaf |= st.binary(max_size=20)
    anything = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner)
    )
    fields = data.draw(st.dictionaries(st.sampled_from([*kind.__struct_fields__, "type", "more"]), anything))

    @virtually
    async def main() -> None:
        stream, _ = stream_of(frame(0, msgspec.msgpack.encode(fields)))
        (outcome,) = await asyncio.gather(stream.receive(kind), return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ProtocolError)
            assert outcome.peer == PEER
        else:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=kind) == outcome

    main()


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (b"", "ended early"),
        (b"\x00\x00", "ended early"),
        (frame(0, b"\x80", 20), "ended early"),
        (frame(0, b"", MAX_MESSAGE_BYTES + 1), "exceeds"),
        (frame(0, b"", 0xFFFFFFFF), "exceeds"),
        (frame(2, b"", 0xFFFFFFFF), "exceeds"),
        (frame(1, b"1234"), "where no bulk frame was due"),
        (pulse(0), "unknown frame kind 3"),
        (pulse(MOST_TICKS + 1), "unknown frame kind 3"),
        (frame(77, b""), "unknown frame kind 77"),
        (frame(0, b"\xc1"), "malformed"),
        (frame(0, b""), "malformed"),
        (frame(0, b"\x91" * 5000 + b"\xc0"), "malformed"),
        (frame(2, b"\x81\xa4code\x01"), "malformed"),
    ],
)
def test_broken_frames_are_refused_before_memory_is_taken(recorded: bytes, message: str) -> None:
    @virtually
    async def main() -> None:
        stream, tape = stream_of(recorded)
        with pytest.raises(ProtocolError, match=message) as caught:
            await stream.receive(Report)
        assert caught.value.peer == PEER
        assert tape.largest_request <= 1 << 15

    main()


@pytest.mark.parametrize("body", [b"123", b"12345", b""])
def test_bulk_frames_must_have_the_length_that_is_due(body: bytes) -> None:
    @virtually
    async def main() -> None:
        stream, _ = stream_of(frame(1, body))
        target = bytearray(4)
        with pytest.raises(ProtocolError, match="where 4 bytes was due"):
            await stream.receive_bulk_into(memoryview(target))
        assert target == bytes(4)

    main()


@virtually
async def test_a_refusal_with_a_code_of_a_later_version_is_a_refusal() -> None:
    stream, _ = stream_of(frame(2, msgspec.msgpack.encode({"code": "eclipse", "reason": "the sun is gone"})))
    with pytest.raises(RejectedError, match="the sun is gone") as caught:
        await stream.receive(Report)
    assert caught.value.code is RefusalCode.REFUSED


@virtually
async def test_refusals_pulses_and_the_end() -> None:
    refusal = frame(2, msgspec.msgpack.encode({"code": "full", "reason": "no seat is free"}))
    stream, _ = stream_of(pulse() * 3 + refusal)
    with pytest.raises(RejectedError, match="no seat is free") as caught:
        await stream.receive(Report)
    assert (caught.value.code, caught.value.peer) == ("full", PEER)
    stream, _ = stream_of(pulse() + frame(0, msgspec.msgpack.encode(Report(3))) + pulse())
    assert await stream.receive(Report) == Report(3)
    await stream.receive_end()
    stream, _ = stream_of(frame(0, b"\x80"))
    with pytest.raises(ProtocolError, match="after the end"):
        await stream.receive_end()


class SlowTape(Tape):
    """Its reset wakes whoever reads at once, but takes a while, as that of a stream over iroh does."""

    async def reset(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
            await asyncio.sleep(0.01)
            self.was_reset = True


@virtually
async def test_the_reset_of_a_stream_that_fell_silent_is_not_cut_short() -> None:
    clockwork = KeepaliveTicker()
    clockwork.start()
    tape = SlowTape(b"", ends=False)
    stream = MessageStream(tape, PEER, clockwork, lambda: None, lines())
    with pytest.raises(SilentError):
        await stream.receive(Refusal)
    await stream.close()
    assert tape.was_reset
    clockwork.close()


@virtually
async def test_a_silent_peer_is_given_up_by_ticks_of_the_own_clock() -> None:
    clockwork = KeepaliveTicker()
    tape = Tape(b"", ends=False)
    stream = MessageStream(tape, PEER, clockwork, lambda: 0.1, lines())
    clockwork.start()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(SilentError):
        await stream.receive(Report)
    waited = asyncio.get_running_loop().time() - begun
    assert waited == pytest.approx(silence_limit(0.1) * PULSE_S, abs=PULSE_S / 10)
    assert tape.was_reset
    assert tape.written.count(pulse()) >= 4  # and all the while it gave signs of life itself
    clockwork.close()


async def silence_of_a_new_stream(*, is_heard_elsewhere: bool) -> float:
    """Seconds until a stream is given up to a peer of which an older stream heard nothing for a second before."""
    loop, clockwork, last_heard = asyncio.get_running_loop(), KeepaliveTicker(), LastHeard()
    clockwork.start()

    def wrap(tape: Tape) -> MessageStream:
        return MessageStream(tape, PEER, clockwork, lambda: None, lines(), last_heard)

    older = asyncio.ensure_future(wrap(Tape(b"", ends=False)).receive(Report))
    await asyncio.sleep(1.0)
    newer = asyncio.ensure_future(wrap(Tape(b"", ends=False)).receive(Report))
    begun_s = loop.time()
    if is_heard_elsewhere:
        third = asyncio.ensure_future(wrap(Tape(pulse(), ends=False)).receive(Report))
    with pytest.raises(SilentError):
        await older
    late = asyncio.ensure_future(wrap(Tape(b"", ends=False)).receive(Report))
    with pytest.raises(SilentError):
        await newer
    took_s = loop.time() - begun_s
    if not is_heard_elsewhere:
        with pytest.raises(SilentError):
            async with asyncio.timeout(3 * PULSE_S):  # it shares the verdict of the tick in which it was opened
                await late
    await asyncio.sleep(PULSE_S)
    fresh = asyncio.ensure_future(wrap(Tape(b"", ends=False)).receive(Report))
    await asyncio.sleep(1.0)
    assert not fresh.done(), "it was opened after that, and the peer may be back"
    left = (fresh, late, third) if is_heard_elsewhere else (fresh,)
    for stream in left:
        stream.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    clockwork.close()
    return took_s


@virtually
async def test_streams_share_what_they_know_of_the_silence_of_their_peer() -> None:
    assert await silence_of_a_new_stream(is_heard_elsewhere=False) == pytest.approx(0.5, abs=PULSE_S)
    assert await silence_of_a_new_stream(is_heard_elsewhere=True) == pytest.approx(1.5, abs=PULSE_S)


def test_silence_limits_grow_with_the_link_but_not_without_end() -> None:
    assert silence_limit(None) * PULSE_S == 1.25
    assert silence_limit(0.001) == silence_limit(None), "a link of no length costs no further tick"
    assert silence_limit(0.5) * PULSE_S == 3.25
    assert silence_limit(1e9) * PULSE_S == 9.25
    assert silence_limit(None, MOST_TICKS) * PULSE_S == 6.0


@virtually
async def test_whoever_has_many_streams_pulses_rarely_and_is_not_given_up_for_that() -> None:
    clockwork = KeepaliveTicker()
    crowd = [stream_of(b"", clockwork=clockwork, ends=False) for _ in range(10 * STREAMS_PER_TICK)]
    clockwork.start()
    await asyncio.sleep(60.0)
    clockwork.close()
    for _, tape in crowd:
        assert tape.written.count(pulse(10)) == tape.written.count(b"\x03") == pytest.approx(60.0 / 10 / PULSE_S, abs=2)

    clockwork = KeepaliveTicker()
    stream, tape = stream_of(pulse(10), clockwork=clockwork, ends=False)
    clockwork.start()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(SilentError):
        await stream.receive(Report)
    assert asyncio.get_running_loop().time() - begun == pytest.approx((6 + 8 + 1) * PULSE_S, abs=PULSE_S)
    assert tape.written.count(pulse(10)) >= 1  # the side with fewer streams follows
    clockwork.close()


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Report, "samples", -1),
        (Report, "samples", 1 << 41),
        (Report, "samples", 1.5),
        (Report, "rate", math.nan),
        (Report, "rate", math.inf),
        (Report, "rate", -0.1),
        (Report, "busy_s", math.nan),
        (Report, "micro_batch_s", 1e10),
        (Report, "parked", 1),
        (reducing.FetchChunks, "round_id", "xyz"),
        (reducing.FetchChunks, "round_id", "0" * 31),
        (reducing.FetchChunks, "chunks", [-1]),
        (reducing.FetchChunks, "chunks", [0] * ((1 << 17) + 1)),
        (reducing.Lost, "lost", [4096]),
        (reducing.Freeze, "term", 0),
        (reducing.Freeze, "term", 1001),
        (reducing.PartHello, "weight", -1),
        (reducing.PartHello, "assignment", [0, 4096]),
        (reducing.PartHello, "assignment", [0]),
        (reducing.ChunkMap, "bitmap", bytes((1 << 14) + 1)),
        (wire.SignedPlan, "signature", bytes(65)),
        (Hello, "wall_time", math.nan),
        (Hello, "wall_time", math.inf),
        (Hello, "role", "King\n"),
        (Hello, "run_id", "0" * 65),
        (Hello, "versions", [0, 1 << 60]),
        (Call, "method", "m" * 65),
        (Refusal, "code", "c" * 65),
        (Refusal, "reason", "r" * 501),
        (Address, "peer_id", "ab" * 31),
        (Address, "peer_id", "AB" * 32),
        (Address, "peer_id", "ab" * 32 + "\n"),
        (Address, "peer_id", "a" * 100_000),
        (Address, "direct", ["127.0.0.1:1"] * 17),
        (Address, "direct", ["1" * 81]),
        (Address, "direct", ["127.0.0.1:1\n"]),
        (Address, "relay", "https://" + "r" * 256),
        (Join, "address", {"peer_id": "ab" * 32, "direct": ["1" * 81]}),
        (Join, "seats", -2),
        (Join, "step", -1),
        (Join, "previous", "zz"),
        (Join, "suspects", ["x"]),
        (Join, "suspects", ["a" * 64] * 65),
        (wire.GroupMember, "address", {"peer_id": "ab" * 32, "relay": "r" * 257}),
        (DialMe, "address", {"peer_id": "ab" * 32, "direct": ["127.0.0.1:1"] * 17}),
        (Hello, "versions", [1]),
    ],
)
def test_fields_out_of_range(kind: type[msgspec.Struct], field: str, value: object) -> None:
    valid: dict[type, dict[str, object]] = {
        Report: {},
        reducing.FetchChunks: {"round_id": "0" * 32, "chunks": [1]},
        reducing.Lost: {"round_id": "0" * 32, "lost": [1]},
        reducing.Freeze: {"round_id": "0" * 32, "term": 1, "dead": [], "revoked": []},
        reducing.PartHello: {"round_id": "0" * 32, "assignment": [0, 0], "weight": 1},
        reducing.ChunkMap: {"bitmap": b"", "term": 0, "assignments": []},
        wire.SignedPlan: {"type": "signed_plan", "plan": b"", "signature": b""},
        Hello: {"versions": [1, 1], "run_id": "r", "role": "trainer", "wall_time": 1.0},
        Call: {"method": "m"},
        Refusal: {"code": "c", "reason": "r"},
        Address: {"peer_id": PEER, "direct": ["1" * 80] * 16, "relay": "r" * 256},
        Join: msgspec.to_builtins(a_join()),
        wire.GroupMember: {"address": {"peer_id": PEER}, "aggregates": True},
        DialMe: {"address": {"peer_id": PEER}},
    }
    msgspec.msgpack.decode(msgspec.msgpack.encode(valid[kind]), type=kind)
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**valid[kind], field: value}), type=kind)


@virtually
async def test_a_pulse_needs_no_task_where_the_transport_takes_it_at_once() -> None:
    class Prompt(Tape):
        def write_now(self, data: bytes) -> bool:
            self.written += data
            return True

    for kind in (Tape, Prompt):
        clockwork, tape = KeepaliveTicker(), kind(b"", ends=False)
        stream = MessageStream(tape, PEER, clockwork, lambda: None, lines())
        before = len(asyncio.all_tasks())
        stream.on_tick(clockwork.tick + LEAST_TICKS)
        assert len(asyncio.all_tasks()) - before == (kind is Tape)
        await asyncio.sleep(0.0)
        assert bytes(tape.written) == pulse()
        await stream.close()


@virtually
async def test_a_pulse_comes_after_what_is_being_written() -> None:
    """Never in the midst of a frame, and not after the end."""
    gate = asyncio.Event()

    class Slow(Tape):
        async def write(self, data: Buffer) -> None:
            await gate.wait()
            self.written += data

        def write_now(self, data: bytes) -> bool:
            raise AssertionError("a write is under way")

    clockwork, tape = KeepaliveTicker(), Slow(b"", ends=False)
    stream = MessageStream(tape, PEER, clockwork, lambda: None, lines())
    sending = asyncio.get_running_loop().create_task(stream.send_bulk(bytes(5000)))
    await asyncio.sleep(0.0)
    stream.on_tick(clockwork.tick + LEAST_TICKS)
    gate.set()
    await sending
    await stream.finish()
    stream.on_tick(clockwork.tick + 2 * LEAST_TICKS)
    assert len(tape.written) == 5005
    await stream.close()
