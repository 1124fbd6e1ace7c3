"""A peer's access link as its streams use it: they report to its meter, and its pacers limit them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from minga.core.errors import ProtocolError
from minga.core.rate_cap import RateCap
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.delivery_reports import Arriving, BulkUse, DeliveryReports, Span
from minga.network.bandwidth.estimate import Estimate
from minga.network.bandwidth.meter import IDLE_SHARE, LinkMeter
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.meta_bytes import byte_view

# ---- What a peer sends, or takes, is kept below a cap that its owner set.
#
# Theory of operation. A token bucket that may go into debt by one piece: a piece passes as soon as nothing is owed, and
# then owes its size divided by the rate. Unused time is kept for `BURST_S` seconds only. So over t seconds at most
# `rate * (t + BURST_S)` bytes and one piece pass. Messages and pulses go before bulk bytes, which wait in line piece by
# piece. Messages that came are owed without having asked, for `MOST_OWED_S` at most: else a peer that sends more than
# the cap would keep bulk bytes waiting long after it has stopped. The more streams wait, the smaller the pieces, so
# that each stream moves several times a second and none looks dead to the other side.


BURST_S, MOST_OWED_S = 0.05, 10.0
TURN_S = 0.1
"""Seconds in which every stream that waits should get a turn."""

SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 512, 256 << 10

_EARLY_S = 1e-9
"""Timers may fire this much early."""


class TokenBucket:
    """One direction of an access link. `cap` is None without a limit; `wall_time` gives Unix time for its schedule."""

    def __init__(self, cap: RateCap | None, wall_time: Callable[[], float]) -> None:
        self._cap, self._wall_time = cap, wall_time
        self._free_s = -math.inf
        self._urgent: deque[tuple[asyncio.Future[None], int]] = deque()
        self._bulk: deque[tuple[asyncio.Future[None], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rate(self) -> float | None:
        """The cap in bytes per second at present, None without one."""
        if self._cap is None:
            return None
        rate = self._cap.now(self._wall_time())
        return rate if rate < math.inf else None

    @property
    def piece_bytes(self) -> int:
        """How many bulk bytes to take at once."""
        rate = self.rate
        if rate is None:
            return LARGEST_PIECE_BYTES
        piece = rate * TURN_S / (len(self._bulk) + 1)
        return int(min(max(piece, SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES))

    def charge(self, size: int) -> None:
        """`size` bytes have passed, without asking."""
        if (rate := self.rate) is not None:
            self._charge(size, rate)
            self._free_s = min(self._free_s, asyncio.get_running_loop().time() + MOST_OWED_S)

    async def take(self, size: int, *, urgent: bool = False) -> None:
        """Wait until `size` bytes may pass; the urgent ones go first."""
        rate = self.rate
        if rate is None and not self._urgent and not self._bulk:
            return
        now = asyncio.get_running_loop().time()
        if rate is not None and not self._urgent and (urgent or not self._bulk) and self._free_s <= now + _EARLY_S:
            self._charge(size, rate)
            return
        turn = asyncio.get_running_loop().create_future()
        (self._urgent if urgent else self._bulk).append((turn, size))
        self._set_timer()
        await turn

    def _charge(self, size: int, rate: float) -> None:
        now = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now - BURST_S) + size / rate

    def _set_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._free_s, loop.time()), self._let_through)

    def _let_through(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while (queue := self._urgent or self._bulk) and self._free_s <= now + _EARLY_S:
            turn, size = queue.popleft()
            if not turn.done():  # a sender that was cancelled meanwhile sends nothing
                if (rate := self.rate) is not None:
                    self._charge(size, rate)
                turn.set_result(None)
        if self._urgent or self._bulk:
            self._set_timer()


# ---- The link.


@dataclass(frozen=True)
class AccessRates:
    """A peer's own present rates and caps in bytes per second, None where unknown or without limit.

    No rate exceeds its cap. A rate that is not `shown` is only what traffic asked for: the link was never full, and may
    carry more.
    """

    upload: float | None = None
    download: float | None = None
    upload_cap: float | None = None
    download_cap: float | None = None
    upload_shown: bool = True
    download_shown: bool = True

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The rate of the link in each direction, up first; None where traffic has not shown it."""
        return self.upload if self.upload_shown else None, self.download if self.download_shown else None

    @property
    def limited_by(self) -> str:
        """What limits each direction, for people: "cap", "line" or "unknown", such as "upload cap, download line"."""
        return f"upload {_limit(self.upload, self.upload_cap)}, download {_limit(self.download, self.download_cap)}"


@loop_bound
class AccessLink:
    """Meter and pacers of one node. `clock` is the loop's, `wall_time` the Unix time for schedules."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall_time: Callable[[], float],
        upload_cap: RateCap | None = None,
        download_cap: RateCap | None = None,
    ) -> None:
        self.clock = clock
        self.doubts = 0
        """How many transfers took much longer than the rates predict, since the last probe."""
        self.meter = LinkMeter(clock)
        self.received_bytes = 0
        """Bulk bytes that arrived so far, from all peers."""
        self.upload, self.download = TokenBucket(upload_cap, wall_time), TokenBucket(download_cap, wall_time)

    def doubt(self) -> None:
        """Note that a transfer took much longer than the rates predict; after a few of these this peer probes its link
        again.
        """
        self.doubts += 1

    def has_room(self, received_bytes: int, seconds: float) -> bool:
        """Whether the download is known to carry clearly more than `received_bytes` in this time."""
        known = self.meter.down.total.value
        return known is not None and received_bytes < IDLE_SHARE * known * seconds

    def rates(self) -> AccessRates:
        """What this peer can send and receive at present, as far as it knows."""
        self.meter.up.settle()
        self.meter.down.settle()
        sent, received, caps = self.meter.up.total, self.meter.down.total, (self.upload.rate, self.download.rate)
        upload, upload_shown = _under(sent, caps[0])
        download, download_shown = _under(received, caps[1])
        return AccessRates(upload, download, *caps, upload_shown, download_shown)


def _under(seen: Estimate, cap: float | None) -> tuple[float | None, bool]:
    """The observed rate, or the cap if that is lower, and whether the link carries no more than that."""
    if seen.value is None or cap is None or seen.value < cap:
        return seen.value, seen.is_shown
    return cap, True


def _limit(rate: float | None, cap: float | None) -> str:
    if rate is None:
        return "unknown" if cap is None else "cap"
    return "cap" if cap is not None and rate >= 0.95 * cap else "line"


# ---- The streams of the link: what each moves is counted, and keeps to the caps.


class StreamCounter:
    """What was sent to and received from `peer` over one stream.

    `rarity` is the factor by which delivery reports are rarer than usual: with many streams they would fill the link.
    """

    def __init__(self, peer: PeerId, access_link: AccessLink, rarity: Callable[[], float] = lambda: 1.0) -> None:
        self.use = BulkUse.WORK
        """What the bulk frames of this stream are for; set it before the first."""
        self._closed, self._begun_s = False, 0.0
        self._line_bytes = 0
        self._peer, self._access_link = peer, access_link
        self._made_reports: DeliveryReports | None = None
        self._rarity = rarity

    @property
    def arriving(self) -> Arriving | None:
        """The bulk frame that is coming; None if there is none."""
        return None if self._made_reports is None else self._made_reports.arriving

    @property
    def sends(self) -> bool:
        """Whether bulk frames were sent over this stream."""
        return self._made_reports is not None and self._made_reports.sends

    @property
    def _delivery_reports(self) -> DeliveryReports:
        """Made with the first bulk frame: most streams have none."""
        if self._made_reports is None:
            self._made_reports = DeliveryReports()
        return self._made_reports

    def sending(self, size: int) -> None:
        """A bulk frame waits to be sent."""
        self._delivery_reports.hand_over(size, self._access_link.clock())
        self._note_work()

    def sent(self) -> None:
        """The bulk frame is on its way."""
        self._delivery_reports.handed_over(self._access_link.clock())

    def expect(self, size: int) -> bytes | None:
        """A bulk frame of `size` bytes begins to arrive. Returns a report for earlier bytes, as `came` does."""
        self._note_work()
        self._begun_s, reports = self._access_link.clock(), self._delivery_reports
        receipt = None
        if reports.is_paused(self._begun_s):
            receipt = self._report(reports.rest)
            self._line_bytes = self._access_link.received_bytes
        reports.rarity = self._rarity()
        reports.expect(size, self._begun_s)
        return receipt

    def came(self, size: int) -> bytes | None:
        """Bytes of a bulk frame arrived. Returns the body of a delivery report if one is due."""
        now, reports = self._access_link.clock(), self._delivery_reports
        if self.use is BulkUse.PROBE:  # it is over before a report is due
            self._access_link.meter.down.add_total(Span(size, self._begun_s, now), self.use)
            self._begun_s = now
        self._access_link.received_bytes += size
        reports.came(size, now)
        return self._report(reports.due)

    def _report(self, span: Span | None) -> bytes | None:
        if span is None:
            return None
        access_link, down = self._access_link, self._access_link.meter.down
        line_bytes, self._line_bytes = access_link.received_bytes - self._line_bytes, access_link.received_bytes
        span = span._replace(room=access_link.has_room(line_bytes, span.end_s - span.begin_s))
        down.add(self._peer, span, self.use, in_total=self.use is not BulkUse.PROBE)
        return self._delivery_reports.report(span)

    def acknowledge(self, receipt: bytes | bytearray) -> None:
        """The other side tells what came. Raises `ProtocolError` if that cannot be true."""
        try:
            span = self._delivery_reports.acknowledge(receipt, self._access_link.clock())
        except ValueError as error:
            raise ProtocolError(str(error), peer=self._peer) from error
        self._access_link.meter.up.add(self._peer, span, self.use, in_total=True)

    def close(self, *, in_order: bool) -> None:
        """The stream is over: count what no span tells of, too short as it was for a rate. May be called twice.

        Of one that did not end `in_order` nobody knows how much came of what waited in buffers to be sent.
        """
        if self.use is BulkUse.WORK and not self._closed and self._made_reports is not None:
            self._closed = True
            sent, received = self._made_reports.unreported
            if in_order:
                self._access_link.meter.up.note(self._peer, sent)
            self._access_link.meter.down.note(self._peer, received)

    def _note_work(self) -> None:
        if self.use is BulkUse.WORK:
            self._access_link.meter.note_work()


class ShapedStream:
    """Writes to and reads from `stream` as the caps of `access_link` allow."""

    def __init__(self, stream: Stream, access_link: AccessLink) -> None:
        self.is_held = False
        """Whether nothing is read because of this side's own cap, so that the other side's silence means nothing."""
        self.may_not_write = False
        """Whether what is to be written waits for this side's own cap, and not for the other side."""
        self._stream, self._access_link = stream, access_link

    async def write(self, data: Buffer, *, urgent: bool) -> None:
        """Send all of `data`; urgent bytes go before others, on all streams of the node."""
        pacer = self._access_link.upload
        if pacer.rate is None:
            await self._stream.write(data)
            return
        view = byte_view(data)
        while view.nbytes:
            piece = view[: pacer.piece_bytes]
            self.may_not_write = True
            try:
                await pacer.take(piece.nbytes, urgent=urgent)
            finally:
                self.may_not_write = False
            await self._stream.write(piece)
            view = view[piece.nbytes :]

    def write_now(self, data: bytes) -> bool:
        """Send a few bytes if neither a cap nor the transport makes them wait; whether it did."""
        return self._access_link.upload.rate is None and self._stream.write_now(data)

    async def read_into(
        self, target: memoryview, came: Callable[[int], None], filled: Callable[[int], None] | None = None
    ) -> None:
        """Fill `target` with bulk bytes; `came` is called repeatedly with the number of bytes that arrived, and
        `filled` with that of bytes that are in their place.
        """
        pacer = self._access_link.download
        while pacer.rate is not None and target.nbytes:
            piece = target[: pacer.piece_bytes]
            self.is_held = True
            try:
                await pacer.take(piece.nbytes)
            finally:
                self.is_held = False
            came(0)
            await self._stream.read_into(piece, came, filled)
            target = target[piece.nbytes :]
        if target.nbytes:
            await self._stream.read_into(target, came, filled)
