"""Counts the bulk bytes of one stream in both directions for the meter of the node."""

from __future__ import annotations

from collections.abc import Callable

from minga.core.errors import ProtocolError
from minga.network.bandwidth.access_link import AccessLink
from minga.network.bandwidth.delivery_reports import REPORT_BYTES, Arriving, BulkUse, DeliveryReports, Span
from minga.network.interface import PeerId

MAX_UNREPORTED_BYTES = REPORT_BYTES
"""More than that cannot have arrived unreported: it was not sent before the stream broke off."""


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
        now = self._access_link.clock()
        if self.use is BulkUse.PROBE:  # it is over before a report is due
            self._access_link.meter.down.add_total(Span(size, self._begun_s, now), self.use)
            self._begun_s = now
        self._access_link.received_bytes += size
        self._delivery_reports.came(size, now)
        return self._report(self._delivery_reports.due)

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

    def close(self) -> None:
        """The stream is over: count what no span tells of, too short as it was for a rate. May be called twice."""
        if self.use is BulkUse.WORK and not self._closed and self._made_reports is not None:
            self._closed = True
            sent, received = self._made_reports.unreported
            self._access_link.meter.up.note(self._peer, min(sent, MAX_UNREPORTED_BYTES))
            self._access_link.meter.down.note(self._peer, received)

    def _note_work(self) -> None:
        if self.use is BulkUse.WORK:
            self._access_link.meter.note_work()
