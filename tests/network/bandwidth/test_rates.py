"""Rates learnt from the traffic that flows anyway."""

from __future__ import annotations

import asyncio
import math
import random
import struct

import pytest

from minga.averaging.links import MAX_APART, MAX_LINK_ROWS, LinkRow, Links, has_moved, is_news, link_key, links_of
from minga.core.errors import ProtocolError
from minga.network.bandwidth import delivery_reports
from minga.network.bandwidth.delivery_reports import BulkUse, DeliveryReports, Span
from minga.network.bandwidth.meter import BUCKET_S, SETTLE_S, DirectionMeter
from minga.network.interface import PeerId
from minga.training.record_kinds import RUN_KINDS
from tests.worlds.link_world import MB, LinkWorld
from tests.worlds.swarm_tools import virtually

A, B, C, D, E = (PeerId(letter * 64) for letter in "abcde")

# ---- the meter


class Bench:
    """A meter with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meter = DirectionMeter(lambda: self.now)

    def move(
        self,
        rates: dict[PeerId, float],
        seconds: float,
        *,
        loaded: bool = True,
        room: bool = True,
        use: BulkUse = BulkUse.WORK,
        pause_s: float = 0.0,
    ) -> None:
        """All at once, in spans of a quarter of a second."""
        for _ in range(round(seconds / 0.25)):
            begin_s, self.now = self.now, self.now + 0.25
            for peer, rate in rates.items():
                span = Span(int(rate * 0.25), begin_s, self.now, loaded, room)
                self.meter.add(peer, span, use)
                self.meter.add_total(span, use)
        self.now += pause_s
        self.meter.settle()

    def path(self, peer: PeerId) -> tuple[float | None, float | None, float | None]:
        path = dict(self.meter.paths())[peer]
        return path.rate.value, path.share, path.mean

    @property
    def total(self) -> float | None:
        return self.meter.total.value


def test_totals_are_what_moves_at_once() -> None:
    bench = Bench()
    bench.move({A: 1e6, B: 3e6, C: 4e6}, 3.0, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(8e6, rel=0.01)
    assert bench.path(A) == (pytest.approx(1e6, rel=0.02), None, pytest.approx(1e6, rel=0.02))
    assert bench.path(C) == (pytest.approx(4e6, rel=0.02), None, pytest.approx(4e6, rel=0.02))


def test_spans_that_are_told_of_late_count() -> None:
    bench = Bench()
    for number in range(40):
        bench.now = (number + 1) * 0.25
        bench.meter.add(A, Span(250_000, bench.now - 0.25, bench.now, loaded=True), BulkUse.WORK)
        bench.meter.add_total(Span(250_000, bench.now - 0.25, bench.now, loaded=True), BulkUse.WORK)
        if number >= 12:  # this receipt stood behind three seconds of other bytes
            late = Span(250_000, bench.now - 3.25, bench.now - 3.0, loaded=True)
            bench.meter.add(B, late, BulkUse.WORK)
            bench.meter.add_total(late, BulkUse.WORK)
    bench.now += SETTLE_S - 3.0
    assert bench.total == pytest.approx(2e6, rel=0.01)


def test_what_is_read_in_lumps_makes_no_line_faster() -> None:
    bench = Bench()
    for _ in range(300):
        begin_s, bench.now = bench.now, bench.now + 0.4
        for peer, span in (
            (A, Span(40_000, begin_s, bench.now)),
            (B, Span(120_000, bench.now - 0.05, bench.now)),  # all that came meanwhile
        ):
            bench.meter.add(peer, span, BulkUse.WORK)
            bench.meter.add_total(span, BulkUse.WORK)
    bench.now += SETTLE_S + 1.0
    bench.meter.settle()
    assert bench.total == pytest.approx(4e5, rel=0.25)


def test_small_transfers_beside_a_large_one_make_no_line_faster() -> None:
    bench, generator = Bench(), random.Random(7)
    line, peers = 5e5, (B, C, D, E)
    bench.move(dict.fromkeys((A, *peers), line / 5), 10.0)
    for _ in range(240):
        begin_s, bench.now = bench.now, bench.now + 0.25
        lump = 24_000 if generator.random() < 0.6 else 0  # read in a moment, but under way all the time
        large = Span(int(0.25 * line - 0.6 * 24_000), begin_s, bench.now, loaded=True, room=True)
        spans = [(A, large)]
        if lump:
            spans.append((generator.choice(peers), Span(lump, bench.now - 0.15, bench.now, loaded=True, room=True)))
        for peer, span in spans:
            bench.meter.add(peer, span, BulkUse.WORK)
            bench.meter.add_total(span, BulkUse.WORK)
    bench.now += SETTLE_S + 1.0
    bench.meter.settle()
    assert bench.total == pytest.approx(line, rel=0.05)


def test_one_slow_receiver_alone_does_not_show_what_the_line_can_do() -> None:
    bench = Bench()
    bench.move({A: 3e6, B: 3e6, C: 3e6}, 3.0)
    bench.move({A: 1e5}, 60.0, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(9e6, rel=0.01)


def short_rounds(bench: Bench, peer: PeerId, seconds: float) -> None:
    """Rounds twice a second, each of 2 MB in 40 ms: too short to fill a bucket."""
    for _ in range(round(2 * seconds)):
        bench.now += 0.5
        span = Span(2_000_000, bench.now - 0.04, bench.now)
        bench.meter.add(peer, span, BulkUse.WORK, in_total=True)
    bench.now += SETTLE_S + 1.0
    bench.meter.settle()


def test_what_rounds_just_took_beats_what_a_slow_peer_once_showed() -> None:
    bench = Bench()
    bench.move({B: 0.25 * MB}, 40.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(0.25 * MB, rel=0.01)
    short_rounds(bench, A, 25.0)
    assert bench.total == pytest.approx(4.0 * MB, rel=0.05)
    assert not bench.meter.total.is_shown, "the line carries at least that"
    assert bench.meter.total.doubtful, "a probe tells how much"


def test_who_limits_itself_shows_nothing_of_the_other_ones_line() -> None:
    bench = Bench()
    bench.meter.caps = {B: 0.25 * MB}
    bench.move({B: 0.25 * MB}, 40.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert not bench.meter.total.is_shown
    bench.move({A: 5.0 * MB, B: 0.25 * MB}, 40.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(5.25 * MB, rel=0.01)
    bench.move({B: 0.25 * MB}, 200.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(5.25 * MB, rel=0.01), "however long it is alone"


def test_a_drop_of_the_line_is_followed_when_it_is_loaded() -> None:
    bench = Bench()
    bench.move({A: 3e6, B: 3e6, C: 3e6}, 5.0)
    bench.move({A: 1e6, B: 1e6, C: 1e6}, 5.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(9e6, rel=0.01)
    bench.move({A: 1e6, B: 1e6, C: 1e6}, 5.0, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(3e6, rel=0.01)


def test_connections_that_compete_for_a_line_show_nothing_about_their_paths() -> None:
    bench = Bench()
    bench.move({A: 1e6, B: 1e6, C: 8e6}, 20.0, pause_s=SETTLE_S + 1.0)
    assert [bench.path(peer)[1] for peer in (A, B, C)] == [None] * 3


def test_two_receivers_with_room_show_what_the_line_can_do() -> None:
    bench = Bench()
    bench.move(dict.fromkeys((A, B, C, D, E), 1e6), 5.0)
    bench.move({A: 2e6, B: 1e6}, 5.0, room=False, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(5e6, rel=0.01)
    bench.move({A: 2e6, B: 1e6}, 5.0, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(3e6, rel=0.01)


def test_paths_that_cannot_fill_a_line_are_slow_if_their_receivers_have_room() -> None:
    bench = Bench()
    bench.move({A: 3e6, B: 3e6, C: 3e6}, 3.0)
    bench.move(dict.fromkeys((D, E), 60000.0), 20.0, room=False, pause_s=SETTLE_S + 1.0)
    assert [bench.path(peer)[1] for peer in (D, E)] == [None] * 2
    bench.move(dict.fromkeys((D, E), 60000.0), 20.0, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(9e6, rel=0.01)
    for peer in (D, E):
        assert bench.path(peer)[:2] == pytest.approx((6e4, 6e4 / 9e6), rel=0.05)


def test_paths_that_have_little_to_send_are_not_slow() -> None:
    bench = Bench()
    bench.move({A: 3e6, B: 3e6, C: 3e6}, 3.0)
    bench.move({A: 2e5, B: 2e5}, 20.0, loaded=False, pause_s=SETTLE_S + 1.0)
    assert [bench.path(peer)[1] for peer in (A, B)] == [None] * 2


@pytest.mark.parametrize(("company", "share"), [((), 1 / 3), ((B, C), None)])
def test_a_slow_path_that_gets_fast_is_noticed(company: tuple[PeerId, ...], share: float | None) -> None:
    bench = Bench()
    bench.move({A: 8e6, B: 8e6, C: 8e6}, 3.0)
    bench.move({A: 1e6}, 10.0, pause_s=SETTLE_S + 1.0)
    assert bench.path(A)[:2] == pytest.approx((1e6, 1 / 24), rel=0.02)
    bench.move(dict.fromkeys((A, *company), 8e6), 5.0, pause_s=SETTLE_S + 1.0)
    assert bench.path(A)[0] == pytest.approx(8e6, rel=0.02)
    assert bench.path(A)[1] == (share and pytest.approx(share, rel=0.02))


def test_probes_of_others_show_paths_only() -> None:
    bench = Bench()
    bench.move({A: 3e6, B: 3e6}, 3.0, pause_s=SETTLE_S + 1.0)
    bench.move({A: 9e6}, 3.0, use=BulkUse.PROBED, pause_s=SETTLE_S + 1.0)
    assert bench.total == pytest.approx(6e6, rel=0.01)
    assert bench.path(A) == (pytest.approx(9e6, rel=0.02), None, pytest.approx(3e6, rel=0.02))


def test_means_cannot_be_made_higher_by_serving_one_after_the_other() -> None:
    bench = Bench()
    for _ in range(3):
        bench.move({A: 3e6}, 1.0)
        bench.move({B: 3e6}, 1.0)
        bench.move({C: 3e6}, 1.0, pause_s=5.0)
    assert [bench.path(peer)[2] for peer in (A, B, C)] == pytest.approx([1e6] * 3, rel=0.05)
    assert bench.path(A)[0] == pytest.approx(3e6, rel=0.01)


def test_a_busy_period_that_never_ends_is_evaluated_all_the_same() -> None:
    bench = Bench()
    bench.move({A: 1e6}, 100.0)
    assert bench.path(A)[2] == pytest.approx(1e6, rel=0.02)


def test_short_transfers_count_for_means() -> None:
    bench = Bench()
    bench.move({A: 1e6}, 1.0)
    bench.meter.note(B, 500_000)
    bench.now += SETTLE_S + 4.0
    bench.meter.settle()
    assert bench.path(B)[0] is None
    assert bench.path(B)[2] == pytest.approx(500_000, rel=0.15)


@pytest.mark.parametrize(
    "span",
    [
        Span(1000, 6.0, 5.0),
        Span(1000, 5.0, 1e9),
        Span(1000, math.nan, 5.0),
        Span(1000, 5.0, math.nan),
        Span(1000, -math.inf, math.inf),
    ],
)
def test_spans_that_cannot_be_are_ignored(span: Span) -> None:
    bench = Bench()
    bench.now = 5.0
    bench.meter.add(A, span, BulkUse.WORK)
    bench.meter.add_total(span, BulkUse.WORK)
    bench.now = 100.0
    assert bench.meter.paths() == []
    assert bench.total is None


def test_memory_is_bounded_whatever_comes() -> None:
    bench = Bench()
    for index in range(400):
        bench.now = index * 0.25
        bench.meter.add(PeerId(f"{index:064x}"), Span(10_000, -1e12, bench.now), BulkUse.WORK)
    bench.now += 10.0
    assert len(bench.meter.paths()) == 256
    assert bench.meter._buckets == {}
    assert len(bench.meter._buckets) * BUCKET_S <= SETTLE_S + 1


# ---- on the virtual network


@virtually
async def test_rounds_show_the_uplinks_and_follow_their_changes() -> None:
    ups = [2.0, 1.0, 5.0, 10.0]
    world = LinkWorld([(up, 40.0) for up in ups])
    await world.start()
    for _ in range(3):
        await world.exchange(1_000_000)
        await asyncio.sleep(1.5)
    assert [peer.rates().upload for peer in world.peers] == pytest.approx([up * MB for up in ups], rel=0.1)
    world.internet.set_rate(world.peers[3].network, 2 * MB, 40 * MB)
    world.internet.set_rate(world.peers[1].network, 4 * MB, 40 * MB)
    for _ in range(3):
        await world.exchange(2_000_000)
        await asyncio.sleep(1.5)
    expected = [2 * MB, 4 * MB, 5 * MB, 2 * MB]
    assert [peer.rates().upload for peer in world.peers] == pytest.approx(expected, rel=0.1)
    await world.close()


@virtually
async def test_rounds_show_downlinks_that_are_the_limit() -> None:
    world = LinkWorld([(20.0, 2.0), (20.0, 20.0), (20.0, 20.0), (20.0, 20.0)])
    await world.start()
    for _ in range(3):
        await world.exchange(2_000_000)
        await asyncio.sleep(1.5)
    assert world.peers[0].rates().download == pytest.approx(2 * MB, rel=0.1)
    await world.close()


@virtually
async def test_the_receiver_decides_what_was_sent_and_not_the_buffers() -> None:
    """The sender's stream takes megabytes at once; the path carries a tenth of it."""
    world = LinkWorld([(None, None), (None, 1.0)], window_bytes=8 << 20)
    await world.start()
    sender, receiver = world.peers
    await sender.send(receiver, 6_000_000)
    await asyncio.sleep(2.0)
    (row,) = links_of(sender.node, {}).rows
    assert row.sent == pytest.approx(1 * MB, rel=0.1)
    assert row.key == link_key(receiver.peer_id)
    assert sender.rates().upload == pytest.approx(1 * MB, rel=0.1)
    await world.close()


@virtually
async def test_who_acknowledges_more_than_was_sent_is_found_out() -> None:
    world = LinkWorld([(4.0, 4.0)] * 3)
    await world.start()
    liar = world.peers[0]

    def twice(self: DeliveryReports, span: Span) -> bytes:
        received, size, begin, end, room = struct.unpack(">QQQQ?", honest(self, span))
        return struct.pack(">QQQQ?", 2 * received, 2 * size, begin, end, room)

    honest = DeliveryReports.report
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery_reports.DeliveryReports, "report", twice)
        with pytest.raises(ProtocolError, match="a receipt for"):
            await world.peers[1].send(liar, 4_000_000)
    await world.close()


# ---- what is published


def test_what_is_worth_a_record() -> None:
    row = LinkRow(link_key(A), 100, 100, 100, 100, 50)
    links = Links(1000, 1000, 0, 0, (row,))
    assert is_news(links, Links())
    assert not is_news(links, links)
    assert not has_moved(links, links)
    assert not has_moved(Links(1090, 910, 0, 0, (row,)), links)
    assert has_moved(Links(1110, 1000, 0, 0, (row,)), links)
    assert not is_news(Links(1400, 1400, 0, 0, (row,)), links)
    assert is_news(Links(1000, 1600, 0, 0, (row,)), links), "what surpasses a rate voids it"
    assert is_news(Links(1000, 1000, 5, 0, (row,)), links)
    assert is_news(Links(1000, 1000, 0, 0, (row, LinkRow(link_key(B), 1, 0, 0, 0, 0))), links)
    slower = LinkRow(link_key(A), 80, 100, 100, 100, 50)
    assert has_moved(Links(1000, 1000, 0, 0, (slower,)), links)
    assert not is_news(Links(1000, 1000, 0, 0, (slower,)), links)


def test_the_longest_record_fits() -> None:
    row = LinkRow(b"\xff" * 8, 10**15, 10**15, 10**15, 10**15, 100)
    for apart in (0, MAX_APART):
        rows, keys = (row,) * (MAX_LINK_ROWS - apart), (b"\xff" * 8,) * apart
        assert len(RUN_KINDS.encode(Links(10**15, 10**15, 10**15, 10**15, rows, apart=keys))) <= 4096
