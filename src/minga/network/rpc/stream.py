"""Typed, bounded messages and bulk bytes on a stream.

A frame is one byte of kind, four bytes of length (big-endian) and that many bytes of body:

    MESSAGE   msgpack of one `msgspec` struct, at most MAX_MESSAGE_BYTES
    BULK      raw bytes (tensor chunks), whose exact length the receiver knows beforehand
    REFUSAL   msgpack of a `Refusal`: the other side understood and says no
    PULSE     still alive, nothing to say; instead of a length, ticks until the next one (`network/rpc/keepalive.py`)
    RECEIPT   how many bulk bytes came and when (`network/bandwidth/delivery_reports.py`)

Memory is allocated only after the length was checked. Arriving bytes are used only after they were decoded into the
type that the protocol expects at this point; other bytes raise a `ProtocolError` that names the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from types import UnionType
from typing import Annotated, Any, TypeVar, cast

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError, RejectedError, RemoteError, SilentError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.network.backlog import Backlog
from minga.network.bandwidth.access_link import AccessLink, ShapedStream, StreamCounter
from minga.network.bandwidth.delivery_reports import RECEIPT_BYTES
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.rpc.keepalive import (
    LEAST_TICKS,
    MOST_TICKS,
    PULSE_S,
    KeepaliveTicker,
    LastHeard,
    silence_limit,
)
from minga.network.rpc.multiplexer import Substream

MAX_RECEIPT_BYTES = 1 << 12
"""Bytes of receipts that may wait for the next write; later ones are dropped."""

RECEIPT_TICKS = 1
"""So many whole ticks a receipt waits for another frame to go with, at most, where this side sends bulk bytes, too."""

MAX_MESSAGE_BYTES = 1 << 20
"""Largest control message. A plan of 2,000 peers takes about 300 KB."""

MAX_REASON_CHARACTERS, MAX_PROOF_BYTES = 500, 256

PIECE_BYTES = 1 << 14

REPORTS_PAUSE_S = 0.5
"""Where pulses are further apart than this, because of many streams, delivery reports are rarer by the same factor."""

MESSAGE, BULK, REFUSAL, PULSE, RECEIPT = range(5)
_HEADER = struct.Struct(">BI")

T = TypeVar("T")


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused: `code` is a `RefusalCode`, or one of a later version, and the reason for people. What
    `proof` is depends on the code.
    """

    code: Annotated[str, msgspec.Meta(max_length=64)]
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)]
    proof: Annotated[bytes, msgspec.Meta(max_length=MAX_PROOF_BYTES)] = b""


class MessageStream:
    """Frames over one `Stream`, with signs of life in both directions, or those of the carrier on which it is.
    `access_link` is measured and held to its caps; `last_heard` belongs to all streams with this peer, `backlog` to all
    peers. Without `pulses` it sends none until `begin_pulses`.

    No object that a stream holds refers back to the stream. Dozens of streams end each second, and so their share of
    the transport's memory is freed at once, and not by the garbage collector, which does not see that memory.

    Errors of every receiving method: `SilentError`, `UnreachableError`, `ProtocolError`, and `RejectedError` when
    the other side refused. Sending methods raise `UnreachableError` or `SilentError`.
    """

    def __init__(
        self,
        stream: Stream,
        peer: PeerId,
        clockwork: KeepaliveTicker,
        round_trip_s: Callable[[], float | None],
        access_link: AccessLink,
        last_heard: LastHeard | None = None,
        backlog: Backlog | None = None,
        *,
        pulses: bool = True,
    ) -> None:
        self.peer = peer
        self._anywhere, self._pulses = last_heard or LastHeard(), pulses
        self._carrier = stream.carrier if isinstance(stream, Substream) else None
        self.counter = StreamCounter(
            peer, access_link, lambda: max(1.0, clockwork.pause_ticks * PULSE_S / REPORTS_PAUSE_S)
        )
        self._backlog = backlog or Backlog()
        self._access_link, self._paced = access_link, ShapedStream(stream, access_link)
        self._stream, self._clockwork, self._round_trip_s = stream, clockwork, round_trip_s
        self._trip_tick, self._trip_s = -1, 0.0
        self._write_lock = asyncio.Lock()
        self._announced = b""
        self._last_write = self._last_heard = self._last_moved = clockwork.tick
        self._pause_ticks = self._far_pause_ticks = LEAST_TICKS  # as this side, and the other, said last
        self._waiting = self._silent = self._finished = self._ended = self._left = False
        self._aside: asyncio.Task[None] | None = None
        self._reset_task: asyncio.Task[None] | None = None
        self._receipts, self._receipt_tick = b"", 0  # those that wait, and since which tick
        clockwork.add(self, pulses=self._carrier is None)
        if self._carrier is not None:
            self._carrier.begin_speaking()

    @property
    def round_trip_s(self) -> float:
        """Round-trip time of the connection in seconds; 0 while it is unknown."""
        if self._trip_tick != self._clockwork.tick:  # asking costs more than the rest of what a report sets in motion
            self._trip_tick, self._trip_s = self._clockwork.tick, self._round_trip_s() or 0.0
        return self._trip_s

    @property
    def quiet_s(self) -> float:
        """Seconds since the last frame, pulses included; 0 while no task receives here, because frames go unnoticed
        then.
        """
        return (self._clockwork.tick - self._heard_tick) * PULSE_S if self._waiting else 0.0

    @property
    def pause_s(self) -> float:
        """Seconds for which either side is quiet when it has nothing to say."""
        return max(self._pause_ticks, self._far_pause) * PULSE_S

    @property
    def idle_s(self) -> float:
        """Seconds since anything but pulses last went in either direction: alive is not the same as getting on."""
        return (self._clockwork.tick - self._last_moved) * PULSE_S

    # ---- sending

    def announce(self, message: msgspec.Struct) -> None:
        """Let a message go together with the next frame, or before this side waits for one."""
        body = msgspec.msgpack.encode(message)
        self._announced += _HEADER.pack(MESSAGE, len(body)) + body

    async def send(self, message: msgspec.Struct) -> None:
        """Send one message."""
        await self._send_frame(MESSAGE, msgspec.msgpack.encode(message))

    async def send_bulk(self, body: Buffer) -> None:
        """Send raw bytes as one frame; waits while the other side is slow to read, or the cap is reached."""
        self.counter.sending(memoryview(body).nbytes)
        await self._send_frame(BULK, body)
        self.counter.sent()

    @contextlib.asynccontextmanager
    async def taken_within(self, limit_s: float) -> AsyncIterator[None]:
        """Within it the other side takes what is sent: who lives and never reads would keep that in memory for ever.

        Raises `SilentError` if that takes more than `limit_s` seconds in which this process is awake, and does not wait
        for its own cap.
        """
        try:
            async with self._clockwork.timeout(limit_s, lambda: not self._paced.may_not_write):
                yield
        except TimeoutError as error:
            raise SilentError(f"it did not take an answer within {limit_s:.0f} s", peer=self.peer) from error

    async def refuse(self, code: RefusalCode, reason: str, proof: bytes = b"") -> None:
        """Tell the other side that its request is refused, and finish."""
        refusal = Refusal(code.value, reason[:MAX_REASON_CHARACTERS], proof)
        await self._send_frame(REFUSAL, msgspec.msgpack.encode(refusal))
        await self.finish()

    async def finish(self) -> None:
        """Say that nothing more will be sent; pulses end with it."""
        async with self._write_lock:
            if not self._finished:
                self._finished = True
                self._leave_carrier()
                try:
                    if waiting := self._take_waiting():
                        await self._paced.write(waiting, urgent=True)
                    await self._stream.finish()
                except UnreachableError as error:
                    raise self._explain(error) from error

    # ---- receiving

    async def receive(self, message_type: type[T]) -> T:
        """Wait for the next message, which must be a valid `message_type`."""
        return self._decode(await self._receive_body(MESSAGE, None), message_type)

    async def receive_one_of(self, union: UnionType) -> Any:
        """Wait for the next message, which must be a valid member of a union of tagged structs."""
        return self._decode(await self._receive_body(MESSAGE, None), cast("type[Any]", union))

    async def receive_bulk_into(self, target: memoryview, filled: Callable[[int], None] | None = None) -> None:
        """Wait for the next bulk frame, which must have exactly the length of `target`, and fill `target` with it.

        `filled` is called with the number of further bytes that are in their place, as soon as they are.
        """
        await self._receive_body(BULK, target, filled=filled)

    async def receive_bulk_up_to(self, target: memoryview) -> int:
        """Wait for the next bulk frame, which must fit into `target`, and fill the beginning of `target` with it.

        Returns its length. Anything longer is a `ProtocolError`, raised before anything of it is read.
        """
        return len(await self._receive_body(BULK, target, exact=False))

    async def receive_pages(self, size_bytes: int, page_bytes: int) -> bytearray:
        """Wait for bulk frames of `page_bytes` each, the last of which may be shorter, until `size_bytes` came.

        That size is the other side's word: memory grows with what really comes.
        """
        data = bytearray()
        while len(data) < size_bytes:
            page = bytearray(min(page_bytes, size_bytes - len(data)))
            await self.receive_bulk_into(memoryview(page))
            data += page
        return data

    async def receive_end(self) -> None:
        """Wait until the other side finished; anything but pulses, or a refusal, before that is a `ProtocolError`."""
        if self._ended or (header := await self._next_header(end_allowed=True)) is None:
            return
        kind, length = header
        if kind != REFUSAL:
            raise ProtocolError(f"unexpected frame of kind {kind} after the end", peer=self.peer)
        self._check_length(length)
        try:
            body = await self._read_exactly(length)
        except UnreachableError as error:
            raise self._explain(error) from error
        raise self._refused(body)

    async def drain(self) -> None:
        """Read and drop what the other side still sends after our last word, up to a bound, until it ends its part.

        Aborting at once could overtake that word, and the other side would never learn of it.
        """
        dropped_bytes = 0
        while dropped_bytes < 16 * MAX_MESSAGE_BYTES:
            data = await self._stream.read(MAX_MESSAGE_BYTES)
            if not data:
                self._ended = True
                return
            dropped_bytes += len(data)

    async def close(self) -> None:
        """Stop caring: abort whatever is still under way. Never raises, may be called twice.

        After both sides finished nothing is aborted: the last bytes may still be on their way.
        """
        self._clockwork.remove(self)
        self._leave_carrier()
        self.counter.close(in_order=self._finished and self._ended)
        if self._aside is not None:
            self._aside.cancel()
        if self._reset_task is not None:  # cancelled half-way it would look like an orderly end to the other side
            await asyncio.wait([self._reset_task])
        elif not (self._finished and self._ended):
            await self._stream.reset()

    def drop(self) -> None:
        """Called by the backlog: there is no room for the message that is on its way."""
        if self._reset_task is None:
            self._reset_task = asyncio.get_running_loop().create_task(self._stream.reset())

    def release(self) -> None:
        """Stop pulsing and watching after both sides finished cleanly."""
        self._clockwork.remove(self)
        self._leave_carrier()
        self.counter.close(in_order=True)

    def begin_pulses(self) -> None:
        """The stream is one of messages for good."""
        self._pulses = True

    def hand_over(self) -> Stream:
        """Give the stream, on which no frame is under way, and on which the other side expects no pulse, to another
        protocol.
        """
        self.release()
        if self._aside is not None:
            self._aside.cancel()
        self._finished = self._ended = True
        return self._stream

    # ---- inner workings

    def on_tick(self, tick: int) -> None:
        """Called by the clockwork: pulse if nothing was written for a while; give up on a silent peer."""
        is_due = self._pulses and self._carrier is None and tick - self._last_write >= self._pause_ticks
        is_late = self._receipts and tick - self._receipt_tick > RECEIPT_TICKS
        if (is_due or is_late) and not self._finished and not self._write_lock.locked():
            frame = b""
            if is_due:
                self._pause_ticks = max(self._clockwork.pause_ticks, self._far_pause_ticks)
                frame = _HEADER.pack(PULSE, self._pause_ticks)
            self._write_soon(frame)
        if self._waiting and not self._paced.is_held and self._is_silent(tick):
            self._silent = True
            self._clockwork.remove(self)
            if self._carrier is not None:
                self._carrier.give_up()
            self._reset_task = asyncio.get_running_loop().create_task(self._stream.reset())

    def _is_silent(self, tick: int) -> bool:
        """Whether the peer is to be given up, because of what this stream heard or what all streams with it did."""
        heard, pause = self._heard_tick, self._far_pause
        quiet = tick - heard
        if quiet >= silence_limit(None, pause) and quiet >= silence_limit(self._round_trip_s(), pause):
            if self._anywhere.frame_tick <= heard:
                self._anywhere.silent_tick = tick
            return True
        # A stream that was opened in the tick in which another one gave the peer up heard nothing in that tick.
        return quiet > pause and self._anywhere.silent_tick >= max(heard, self._anywhere.frame_tick + 1)

    @property
    def _heard_tick(self) -> int:
        return self._last_heard if self._carrier is None else max(self._last_heard, self._carrier.heard_tick)

    @property
    def _far_pause(self) -> int:
        return self._far_pause_ticks if self._carrier is None else self._carrier.pause_ticks

    def _leave_carrier(self) -> None:
        if self._carrier is not None and not self._left:
            self._left = True
            self._carrier.end_speaking()

    def _write_now(self, frame: bytes) -> bool:
        """Write a small frame without a task of its own, if that takes no waiting; whether it did."""
        if self._write_lock.locked() or self._finished:
            return False
        if not self._paced.write_now(self._announced + self._receipts + frame):
            return False
        self._announced = self._receipts = b""
        self._last_write = self._clockwork.tick
        return True

    def _write_soon(self, frame: bytes) -> None:
        if not self._write_now(frame):
            self._aside = asyncio.get_running_loop().create_task(self._write_aside(frame))

    def _take_waiting(self) -> bytes:
        """What was to go with the next frame."""
        waiting, self._announced, self._receipts = self._announced + self._receipts, b"", b""
        return waiting

    async def _write_aside(self, frame: bytes) -> None:
        try:
            await self._write(frame)
        except RemoteError:
            self._clockwork.remove(self)

    def _heard(self) -> None:
        self._last_heard = self._anywhere.frame_tick = self._clockwork.tick

    async def _write(self, *buffers: Buffer, urgent: bool = True) -> None:
        async with self._write_lock:
            if self._finished:
                return
            if waiting := self._take_waiting():
                first, *rest = buffers or (b"",)
                buffers = (waiting + bytes(first), *rest)
            try:
                for buffer in buffers:
                    await self._paced.write(buffer, urgent=urgent)
            except UnreachableError as error:
                raise self._explain(error) from error
            self._last_write = self._clockwork.tick

    def _bulk_came(self, size: int) -> None:
        """Count bytes of a bulk frame, and send a receipt if it is time for one."""
        self._moved(size)
        if size:
            self._send_receipt(self.counter.came(size))

    def _send_receipt(self, receipt: bytes | None) -> None:
        """Send a receipt at once, or with the next frame if this side sends bulk bytes, too."""
        if receipt is None or self._finished or len(self._receipts) >= MAX_RECEIPT_BYTES:
            return
        if not self._receipts:
            self._receipt_tick = self._clockwork.tick
        self._receipts += _HEADER.pack(RECEIPT, len(receipt)) + receipt
        if not self.counter.sends and (self._aside is None or self._aside.done()):
            self._write_soon(b"")

    def _moved(self, _: int) -> None:
        self._last_heard = self._last_moved = self._anywhere.frame_tick = self._clockwork.tick

    async def _send_frame(self, kind: int, body: Buffer) -> None:
        size = memoryview(body).nbytes
        header = _HEADER.pack(kind, size)
        # One write for small frames; large bodies are not copied only to stand behind five bytes.
        if len(header) + size <= 4096:
            await self._write(header + bytes(body), urgent=kind != BULK)
        else:
            await self._write(header, body, urgent=kind != BULK)
        self._last_moved = self._clockwork.tick

    def _explain(self, error: UnreachableError) -> RemoteError:
        if self._silent:
            return SilentError("nothing was heard for longer than its link explains", peer=self.peer)
        return UnreachableError(error.message, peer=self.peer)

    async def _read_exactly(self, size: int) -> bytearray:
        """Announced bytes get memory piece by piece, as they arrive; they wait until the last of them is there."""
        body = bytearray()
        try:
            while len(body) < size:
                piece = bytearray(min(PIECE_BYTES, size - len(body)))
                self._backlog.note(self.peer, self, len(body) + len(piece))
                await self._stream.read_into(memoryview(piece), self._moved)
                if body:
                    body += piece
                else:
                    body = piece
        finally:
            self._backlog.note(self.peer, self, 0)
        return body

    async def _next_header(self, *, end_allowed: bool = False) -> tuple[int, int] | None:
        """Kind and length of the next frame that is no pulse; None at the end of the stream if that is allowed."""
        if self._announced:
            await self._write()
        self._waiting, self._last_heard = True, self._clockwork.tick
        try:
            while True:
                first = await self._stream.read(_HEADER.size)
                self._heard()
                if not first:
                    if end_allowed:
                        self._ended = True
                        return None
                    raise ProtocolError("the stream ended early", peer=self.peer)
                rest = await self._read_exactly(_HEADER.size - len(first)) if len(first) < _HEADER.size else b""
                kind, length = _HEADER.unpack(first + rest)
                if kind == PULSE and LEAST_TICKS <= length <= MOST_TICKS:
                    self._far_pause_ticks = length
                elif kind == RECEIPT and length == RECEIPT_BYTES:
                    self.counter.acknowledge(await self._read_exactly(length))
                elif kind in (MESSAGE, BULK, REFUSAL):
                    return kind, length
                else:
                    raise ProtocolError(f"unknown frame kind {kind}", peer=self.peer)
        except UnreachableError as error:
            raise self._explain(error) from error
        finally:
            self._waiting = False

    async def _receive_body(
        self,
        wanted: int,
        target: memoryview | None,
        *,
        exact: bool = True,
        filled: Callable[[int], None] | None = None,
    ) -> bytearray | memoryview:
        header = await self._next_header()
        kind, length = header if header is not None else (PULSE, 0)
        if kind != BULK:
            self._check_length(length)
        if kind == BULK and (target is None or length > target.nbytes or (exact and length != target.nbytes)):
            bound = "" if exact else "at most "
            expected = "no bulk frame" if target is None else f"{bound}{target.nbytes} bytes"
            raise ProtocolError(f"a bulk frame of {length} bytes where {expected} was due", peer=self.peer)
        if kind not in (wanted, REFUSAL):
            raise ProtocolError(f"a frame of kind {kind} where {wanted} was due", peer=self.peer)
        self._waiting = True
        try:
            if kind == BULK and target is not None:
                self._send_receipt(self.counter.expect(length))
                target = target[:length]
                await self._paced.read_into(target, self._bulk_came, filled)
                return target
            body = await self._read_exactly(length)
            self._access_link.download.charge(length)
        except UnreachableError as error:
            raise self._explain(error) from error
        finally:
            self._waiting = False
        if kind == REFUSAL:
            raise self._refused(body)
        return body

    def _check_length(self, length: int) -> None:
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes exceeds {MAX_MESSAGE_BYTES}", peer=self.peer)

    def _refused(self, body: bytearray) -> RejectedError:
        refusal = self._decode(body, Refusal)
        code = RefusalCode.of(refusal.code)
        return RejectedError(refusal.reason, code=code, proof=refusal.proof, peer=self.peer)

    def _decode(self, body: bytearray | memoryview, message_type: type[T]) -> T:
        try:
            return decode_msgpack(body, message_type)
        except DECODING_ERRORS as error:
            raise ProtocolError(f"malformed message: {error}", peer=self.peer) from error
