"""Receipts: both sides of a stream count the same spans."""

from __future__ import annotations

import asyncio
import struct

import pytest

from minga.core.aio import end
from minga.network.bandwidth.delivery_reports import (
    GAP_S,
    LEAST_BYTES,
    LONGEST_S,
    REPORT_BYTES,
    REPORT_S,
    DeliveryReports,
    Span,
)
from minga.network.interface import PeerId
from minga.network.rpc.stream import RECEIPT, MessageStream
from tests.worlds.link_world import MB, LinkWorld, Peer
from tests.worlds.swarm_tools import virtually


def receive(
    receipts: DeliveryReports, frames: int, size: int, begin_s: float, seconds: float
) -> list[tuple[Span, bytes]]:
    """Frames that arrive evenly."""
    reports = []
    for index in range(frames):
        receipts.expect(size, begin_s + seconds * index / frames)
        receipts.came(size, begin_s + seconds * (index + 1) / frames)
        if (span := receipts.due) is not None:
            reports.append((span, receipts.report(span)))
    return reports


def test_both_sides_count_the_same_spans_by_their_own_clocks() -> None:
    sender, receiver = DeliveryReports(), DeliveryReports()
    sender.hand_over(100 * 10_000, 1005.0)
    reports = receive(receiver, 100, 10_000, 5.0, 1.0)
    assert [span.size for span, _ in reports] == [250_000] * 4
    spans = [sender.acknowledge(body, 1005.02 + span.end_s - 5.0) for span, body in reports]
    assert [span.size for span in spans] == [250_000] * 4
    for span in spans:
        assert span.end_s - span.begin_s == pytest.approx(0.25)
    assert [span.loaded for span in spans] == [True, True, True, False]
    assert receiver.unreported == (0, 0)
    assert sender.unreported == (0, 0)


def test_a_receipt_that_was_held_up_shifts_nothing() -> None:
    sender, receiver = DeliveryReports(), DeliveryReports()
    sender.hand_over(2_000_000, 0.0)
    reports = receive(receiver, 100, 10_000, 0.0, 1.0)
    delays = [3.0, 0.02, 0.5, 2.0]  # the first was held up, too
    spans = [sender.acknowledge(body, span.end_s + delay) for (span, body), delay in zip(reports, delays, strict=True)]
    assert [round(span.end_s, 6) for span in spans] == [0.25, 0.5, 0.75, 1.0]


def test_fast_transfers_are_reported_by_bytes_and_slow_ones_by_time() -> None:
    assert len(receive(DeliveryReports(), 100, REPORT_BYTES // 10, 0.0, 0.6)) == 9
    assert len(receive(DeliveryReports(), 100, LEAST_BYTES // 9, 0.0, 10 * REPORT_S)) == 10
    assert len(receive(DeliveryReports(), 100, LEAST_BYTES // 50, 0.0, 5 * LONGEST_S)) == 5  # slow ones seldom
    assert receive(DeliveryReports(), 100, 20, 0.0, 10 * REPORT_S) == []  # too few bytes to tell anything
    assert receive(DeliveryReports(), 100, REPORT_BYTES, 0.0, 0.0) == []  # too fast


def test_a_pause_is_no_part_of_a_span() -> None:
    receipts = DeliveryReports()
    reports = receive(receipts, 10, 10_000, 0.0, 0.2) + receive(receipts, 30, 10_000, 100.0, 0.3)
    assert [(span.begin_s, span.size) for span, _ in reports] == [(100.0, 250_000)]
    assert receipts.unreported == (0, 150_000)


@pytest.mark.parametrize("gap_s", [0.01, 0.2])
def test_gaps_between_frames_are_not_loaded(gap_s: float) -> None:
    sender, receiver, now = DeliveryReports(), DeliveryReports(), 0.0
    loaded = []
    for _ in range(200):
        sender.hand_over(20_000, now)
        (reports, now) = (receive(receiver, 1, 20_000, now, 0.03), now + 0.03)
        sender.hand_over(20_000, now)  # the next is there when the receipt comes, gap or not
        loaded += [sender.acknowledge(body, now).loaded for _, body in reports]
        reports = receive(receiver, 1, 20_000, now, 0.03)
        now += 0.03
        sender.handed_over(now)
        now += gap_s
        loaded += [sender.acknowledge(body, now).loaded for _, body in reports]
    assert len(loaded) > 20
    assert any(loaded[3:]) == (gap_s < GAP_S)


FORGED = {
    "more than was sent": (1_000_001, 10_000, 0, 250_000),
    "a span of more than came": (10_000, 20_000, 0, 250_000),
    "a tiny span": (10, 10, 0, 250_000),
    "no time": (10_000, 10_000, 0, 0),
    "backwards": (10_000, 10_000, 500_000, 250_000),
    "an hour and more": (10_000, 10_000, 0, 3_700_000_000),
    "the end of time": (10_000, 10_000, 2**64 - 300_000, 2**64 - 1),
    "everything": (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1),
}


@pytest.mark.parametrize("numbers", FORGED.values(), ids=FORGED.keys())
def test_forged_receipts_are_refused(numbers: tuple[int, ...]) -> None:
    sender = DeliveryReports()
    sender.hand_over(1_000_000, 0.0)
    if numbers == FORGED["the end of time"]:  # may be true as far as one can see, and does no harm
        assert sender.acknowledge(struct.pack(">QQQQ?", *numbers, False), 1.0).end_s <= 1.0
        return
    with pytest.raises(ValueError, match="a receipt"):
        sender.acknowledge(struct.pack(">QQQQ?", *numbers, False), 1.0)


def test_receipts_do_not_repeat_or_overlap() -> None:
    sender, receiver = DeliveryReports(), DeliveryReports()
    sender.hand_over(2_000_000, 0.0)
    (_, first), (_, second), *_ = receive(receiver, 100, 10_000, 0.0, 1.0)
    sender.acknowledge(first, 1.0)
    with pytest.raises(ValueError, match="a receipt"):
        sender.acknowledge(first, 1.0)
    sender.acknowledge(second, 1.0)


@pytest.mark.parametrize("body", [struct.pack(">QQQQ?", 10_000, 10_000, 0, 250_000, True), b"", bytes(32), bytes(34)])
def test_receipts_out_of_place_are_an_offence(body: bytes) -> None:
    @virtually
    async def main() -> None:
        world = LinkWorld([(None, None)] * 2)
        await world.start()
        one, other = world.peers
        async with one.node.open(other.peer_id, "test.take", bulk=True) as stream:
            await stream._stream.write(struct.pack(">BI", RECEIPT, len(body)) + body)
            with pytest.raises(Exception):  # noqa: B017, PT011
                await stream.receive_end()
        assert [e.kind for e in other.log].count("peer.offence") == 1
        await world.close()

    main()


@pytest.mark.parametrize("both_ways", [False, True])
def test_where_bulk_goes_both_ways_receipts_go_with_it(both_ways: bool) -> None:
    """Then they cost no packet of their own, and all the same the sender knows of all that came."""

    @virtually
    async def main() -> None:
        world, frames, body = LinkWorld([(2.0, 2.0)] * 2), 30, bytes(100_000)
        await world.start()
        one, other = world.peers
        alone = 0

        async def answer(_: PeerId, stream: MessageStream) -> None:
            nonlocal alone
            write_now = stream._paced.write_now

            def count(data: bytes) -> bool:
                nonlocal alone
                alone += data[0] == RECEIPT
                return write_now(data)

            stream._paced.write_now = count  # type: ignore[method-assign]
            for _ in range(frames):
                await stream.receive_bulk_into(memoryview(bytearray(len(body))))
                if both_ways:
                    await stream.send_bulk(body[:1000])
            await stream.receive_end()

        other.node.serve("test.answer", answer)
        async with one.node.open(other.peer_id, "test.answer", bulk=True) as stream:
            for _ in range(frames):
                await stream.send_bulk(body)
                if both_ways:
                    await stream.receive_bulk_into(memoryview(bytearray(1000)))
            await stream.finish()
            await stream.receive_end()
            assert stream.counter._delivery_reports.unreported[0] < 1_000_000  # of 3: the last span is told to nobody
        assert alone == 0 if both_ways else alone >= 5
        await world.close()

    main()


def test_a_span_waits_until_its_receipt_can_be_sent() -> None:
    receipts = DeliveryReports()
    receipts.expect(500_000, 0.0)
    for number in range(1, 6):
        receipts.came(100_000, number)
    assert receipts.due == Span(500_000, 0.0, 5.0)


def test_spans_end_within_a_frame_that_takes_long() -> None:
    sender, receiver = DeliveryReports(), DeliveryReports()
    sender.hand_over(60_000, 0.0)
    receiver.expect(60_000, 0.0)
    reports = []
    for number in range(1, 61):
        receiver.came(1_000, 0.1 * number)
        if (span := receiver.due) is not None:
            span = span._replace(room=number > 30)
            reports.append((span, receiver.report(span)))
    assert [span.size for span, _ in reports] == [9_000] * 6 + [6_000]
    spans = [sender.acknowledge(body, span.end_s) for span, body in reports]
    assert [span.loaded for span in spans] == [True] * 6 + [False]
    assert [span.room for span in spans] == [False] * 3 + [True] * 4
    assert receiver.unreported == (0, 0)


def test_what_came_before_a_pause_can_be_reported_after_it() -> None:
    receipts = DeliveryReports()
    for begin_s in (0.0, 10.0):
        assert receipts.is_paused(begin_s)
        receipts.expect(4_000, begin_s)
        receipts.came(4_000, begin_s + 0.1)
        assert receipts.due is None  # too soon
        assert receipts.rest == Span(4_000, begin_s, begin_s + 0.1)
        receipts.report(receipts.rest)
        assert receipts.unreported == (0, 0)
        assert receipts.rest is None


@pytest.mark.parametrize("waiting", [False, True])
def test_what_is_sent_as_it_comes_is_not_loaded(waiting: bool) -> None:
    """Frames of 10 KB every 30 ms over a line that needs 20 ms for one, or 30 ms if it is the limit."""
    sender, receiver = DeliveryReports(), DeliveryReports()
    loaded = []
    for number in range(100):
        for _ in range(4 if waiting and not number else 1):  # three more are always there
            sender.hand_over(10_000, 0.03 * number)
            sender.handed_over(0.03 * number)
        receiver.expect(10_000, 0.03 * number)
        for piece in range(1, 5):
            receiver.came(2_500, 0.03 * number + (0.03 if waiting else 0.02) * piece / 4)
            if (span := receiver.due) is not None:
                loaded.append(sender.acknowledge(receiver.report(span), 0.03 * number + 0.05).loaded)
    assert len(loaded) > 8
    assert loaded[2:] == [waiting] * (len(loaded) - 2)


def test_what_waited_when_streams_broke_off_did_not_go_over_the_line() -> None:
    """Most of four frames waited: counted as sent, they would make the line look twice as fast as it is."""

    @virtually
    async def main() -> None:
        world, body = LinkWorld([(0.4, None), *[(None, None)] * 4]), bytes(1_000_000)
        await world.start()
        one, *others = world.peers

        async def take(_: PeerId, stream: MessageStream) -> None:
            while True:
                await stream.receive_bulk_into(memoryview(bytearray(len(body))))

        async def frames(stream: MessageStream) -> None:
            while True:
                await stream.send_bulk(body)

        async def send(other: Peer) -> None:
            async with one.node.open(other.peer_id, "test.frames", bulk=True) as stream:
                await asyncio.gather(frames(stream), stream.receive_end())

        for other in others:
            other.node.serve("test.frames", take)
        sending = [asyncio.create_task(send(other)) for other in others]
        await asyncio.sleep(21.0)
        assert one.rates().upload == pytest.approx(0.4 * MB, rel=0.05)
        await end(*sending)
        await asyncio.gather(*(one.send(other, 2_000_000) for other in others))
        assert one.rates().upload == pytest.approx(0.4 * MB, rel=0.05)
        assert one.rates().upload_shown
        await world.close()

    main()
