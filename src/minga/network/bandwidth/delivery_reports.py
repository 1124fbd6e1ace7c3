"""Delivery reports: the receiver of bulk bytes tells the sender which bytes have arrived, and when.

Theory of operation. How fast bytes go into a stream says little: they may end in buffers of megabytes. So the receiver
of bulk bytes reports how many bytes arrived in which time by its own clock, and both sides count the same *span*. It
reports a few times a second: twice for a slow transfer, more often for a very fast one. The sender places the span on
its own clock by the time at which it sent the first frame, since reports may be held up for seconds behind other bytes.
The sender also knows whether more was waiting all the while. That is so if at both ends of the span the next frame was
there, or the transport did not take the last one, and no gap of `GAP_S` between two frames occurred lately. Only then
does the span show what the link can carry, and not only what was asked of it. The receiver adds whether its own link
had room for more. Only then may the path be the limit.

A span that nothing interrupted for `PAUSE_S` includes the short gaps between frames; longer pauses begin a new one.
Over a slow link spans end with frames where they can. Otherwise most bytes would arrive just before a pause, and be in
no span.
"""

from __future__ import annotations

import enum
import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

REPORT_S, LONGEST_S = 0.25, 0.5
LEAST_BYTES, REPORT_BYTES = 32 << 10, 4 << 20
SHORTEST_S = 0.05
"""A span is reported after `REPORT_S` seconds if they brought `LEAST_BYTES`, after `LONGEST_S` in any case, or when
`SHORTEST_S` seconds have brought `REPORT_BYTES` bytes."""

SMALLEST_BYTES = 2 << 10
USUAL_BYTES = 8 << 10
"""Fewer bytes make a span only at the end of a frame, and fewer than `SMALLEST_BYTES` none. Reports take bytes, too,
and one more packet on one of two streams says little about which stream is faster.
"""

FRAMES = 256
"""The sending times of this many last frames are kept."""

PAUSE_S = 0.5
GAP_S = 0.05
MAX_SPAN_S = 3600.0

_RECEIPT = struct.Struct(">QQQQ?")
RECEIPT_BYTES = _RECEIPT.size


class BulkUse(enum.Enum):
    """The purpose of a stream's bulk bytes: the peer's WORK, its own PROBE, or the probe of another peer (PROBED).

    PROBED bytes measure the path only, and not the capacity of this peer's link.
    """

    WORK = "work"
    PROBE = "probe"
    PROBED = "probed"

    __hash__ = object.__hash__  # that of enumerations is slow, and each report is counted by its use


class Span(NamedTuple):
    """`size` bytes came from loop time `begin_s` to `end_s`.

    `loaded`: more was waiting all the while; `room`: the receiver's link could have taken more.
    """

    size: int
    begin_s: float
    end_s: float
    loaded: bool = False
    room: bool = False


class Arriving(NamedTuple):
    """Of a bulk frame of `size` bytes, `received` came since loop time `begin_s`."""

    size: int
    received: int
    begin_s: float


@dataclass(slots=True)
class _Frame:
    """A frame of `size` bytes that was handed over, up to byte `stop` of the stream, from `begun_s` to `taken_s`."""

    size: int
    stop: int
    begun_s: float
    taken_s: float = math.inf


class DeliveryReports:
    """Both directions of one stream, as far as bulk bytes are concerned. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self.rarity = 1.0
        """By what factor times between two reports are longer than usual."""
        self._received = self._reported = self._span_bytes = self._missing = 0
        self._first_s = self._begin_s = self._last_s = -math.inf
        self._frame_bytes, self._frame_s = 0, -math.inf
        self._sent = self._acknowledged = 0
        self._offset_s, self._latest_s = math.inf, -1.0
        self._more_waits = False
        self._frames: deque[_Frame] = deque(maxlen=FRAMES)
        self._idle_since_s, self._gap_end_s = math.inf, -math.inf

    @property
    def sends(self) -> bool:
        """Whether anything was sent."""
        return self._sent > 0

    @property
    def unreported(self) -> tuple[int, int]:
        """Bytes sent, and bytes received, that are in no span."""
        return max(0, self._sent - self._acknowledged), self._received - self._reported

    # ---- receiving

    @property
    def arriving(self) -> Arriving | None:
        """The frame that is coming; None if there is none."""
        if not self._missing:
            return None
        return Arriving(self._frame_bytes, self._frame_bytes - self._missing, self._frame_s)

    def is_paused(self, now: float) -> bool:
        """Whether nothing came for so long that the next frame begins a new span."""
        return now - self._last_s > PAUSE_S

    def expect(self, size: int, now: float) -> None:
        """A bulk frame of `size` bytes begins to arrive."""
        if self._first_s == -math.inf:
            self._first_s = now
        if self.is_paused(now):
            self._begin_s, self._span_bytes = now, 0
        self._missing = self._frame_bytes = size
        self._frame_s = now

    def came(self, size: int, now: float) -> None:
        """`size` bytes of a frame came."""
        self._received += size
        self._span_bytes += size
        self._missing -= size
        self._last_s = now

    @property
    def due(self) -> Span | None:
        """The span until now, if it is time to report it."""
        seconds, least = self._last_s - self._begin_s, USUAL_BYTES if self._missing else SMALLEST_BYTES
        due = seconds >= self.rarity * (REPORT_S if self._span_bytes >= LEAST_BYTES else LONGEST_S) or (
            seconds >= SHORTEST_S and self._span_bytes >= REPORT_BYTES
        )
        return self.rest if due and self._span_bytes >= least else None

    @property
    def rest(self) -> Span | None:
        """The bytes since the last report, if they can be reported."""
        if self._span_bytes < SMALLEST_BYTES or self._last_s - self._begin_s < SHORTEST_S:
            return None
        return Span(self._span_bytes, self._begin_s, self._last_s)

    def report(self, span: Span) -> bytes:
        """The body of a receipt for the span that is due; the next one begins."""
        self._begin_s, self._span_bytes = span.end_s, 0
        self._reported += span.size
        times = (round((t - self._first_s) * 1e6) for t in (span.begin_s, span.end_s))
        return _RECEIPT.pack(self._received, span.size, *times, span.room)

    # ---- sending

    def hand_over(self, size: int, now: float) -> None:
        """`size` bytes wait to be sent."""
        if not self._sent:
            self._offset_s = now
        self._sent += size
        self._frames.append(_Frame(size, self._sent, now))
        if now - self._idle_since_s > GAP_S:
            self._gap_end_s = now
        self._idle_since_s = math.inf

    def handed_over(self, now: float) -> None:
        """The transport took all that waited."""
        if self._frames:
            self._frames[-1].taken_s = now
        self._idle_since_s = now

    def _waited(self, received: int, when: float) -> bool:
        """Whether at that time, when so many bytes had come, more waited than the rest of the last frame."""
        last = next((frame for frame in reversed(self._frames) if frame.begun_s <= when), None)
        if last is None or received >= last.stop:
            return False
        return last.taken_s > when or last.stop - received >= last.size

    def acknowledge(self, body: bytes | bytearray, now: float) -> Span:
        """The span that a receipt tells of, on this side's clock. Raises `ValueError` if it cannot be true."""
        received, size, begin_us, end_us, room = _RECEIPT.unpack(body)
        begin_s, end_s = begin_us / 1e6, end_us / 1e6
        if not self._acknowledged + size <= received <= self._sent or size < SMALLEST_BYTES:
            raise ValueError(f"a receipt for {size} bytes, {received} in all, where {self._sent} were sent")
        if not (self._latest_s <= begin_s and begin_s + 0.99 * SHORTEST_S <= end_s <= begin_s + MAX_SPAN_S):
            raise ValueError(f"a receipt from {begin_s} s to {end_s} s after one until {self._latest_s} s")
        waited_before = self._more_waits or begin_s > self._latest_s
        self._acknowledged, self._latest_s = received, end_s
        self._offset_s = min(self._offset_s, now - end_s)
        begin_s, end_s = begin_s + self._offset_s, end_s + self._offset_s
        self._more_waits = self._waited(received, end_s)
        # What arrives now left a while ago: a gap shortly before the span may be one within it.
        loaded = waited_before and self._more_waits and self._gap_end_s < begin_s - PAUSE_S
        return Span(size, begin_s, end_s, loaded, room)
