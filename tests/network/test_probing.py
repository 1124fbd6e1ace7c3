"""Probes: what a line can do, shown in two seconds, at the expense of nobody."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from minga.averaging.links import Links, links_of
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.core.errors import RejectedError, RemoteError
from minga.core.rate_cap import RateCap
from minga.core.refusal_code import RefusalCode
from minga.network import probing
from minga.network.bandwidth.delivery_reports import BulkUse
from minga.network.interface import PeerId
from minga.network.probing import (
    MAX_PHASE_BYTES,
    MAX_SERVED,
    PEER_PERIOD_S,
    PHASE_S,
    RESERVE,
    RESERVE_S,
    SERVE_S,
    SERVED_PERIOD_S,
    SINK,
    SOURCE,
    Batch,
    ProbeRequest,
    Ready,
    Reserve,
)
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.simulation.virtual_time import run_virtual
from tests.worlds.link_world import MB, LinkWorld, Peer
from tests.worlds.swarm_tools import later, make_spec, virtually

HOMES = [(2.0, 10.0), (1.0, 5.0), (5.0, 5.0), (10.0, 10.0), (3.0, 20.0), (20.0, 20.0)]


def now() -> float:
    return asyncio.get_running_loop().time()


def probed(peer: Peer) -> list[float]:
    return [event.time for event in peer.log if event.kind == "links.probed"]


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.1)


async def probe(world: LinkWorld, index: int) -> bool:
    peer = world.peers[index]
    partners = [other.peer_id for other in world.peers if other is not peer]
    return await peer.network.process.run(peer.prober.probe(partners))


def moved(world: LinkWorld) -> int:
    return sum(end.bytes_received for peer in world.peers for end in peer.network.ends)


@virtually
async def test_six_homes_learn_their_lines() -> None:
    world = LinkWorld(HOMES)
    await world.start(probing=True)
    await until(lambda: all(probed(peer) for peer in world.peers), 60.0)
    for peer, (up, down) in zip(world.peers, HOMES, strict=True):
        assert peer.rates().upload == pytest.approx(up * MB, rel=0.1)
        assert peer.rates().download == pytest.approx(down * MB, rel=0.1)
    seconds = await world.exchange(1_000_000)
    await asyncio.sleep(2.0)
    assert seconds == pytest.approx(5.1, rel=0.1)  # the upload of the slowest
    for peer, (up, down) in zip(world.peers, HOMES, strict=True):
        assert peer.rates().upload == pytest.approx(up * MB, rel=0.1)
        assert peer.rates().download == pytest.approx(down * MB, rel=0.1)
    assert [len(probed(peer)) for peer in world.peers] == [1] * 6
    for _ in range(2):
        await world.exchange(1_000_000)
        await asyncio.sleep(1.5)
    assert believed(world) == {}, "no path is slow"
    await world.close()


@virtually
async def test_a_probe_is_short_and_bounded() -> None:
    world = LinkWorld([(50.0, 50.0)] * 3)
    await world.start()
    begun, before = now(), moved(world)
    assert await probe(world, 0)
    assert now() - begun < 2 * PHASE_S + 0.5
    assert moved(world) - before < 2 * 50.0 * MB * (PHASE_S + 0.3)
    fast = LinkWorld([(None, None)] * 3)
    await fast.start()
    before = moved(fast)
    assert await probe(fast, 0)
    assert moved(fast) - before < 2 * MAX_PHASE_BYTES * 1.01
    await fast.close()
    await world.close()


def test_what_probes_take_in_a_day_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "MAX_DAY_BYTES", 20 * MB)
    monkeypatch.setattr(probing, "DAY_S", 600.0)

    @virtually
    async def main() -> None:
        world = LinkWorld([(10.0, 10.0), (10.0, 10.0), (None, None)])
        await world.start()
        results = []
        for _ in range(6):
            await asyncio.sleep(PEER_PERIOD_S + 1.0)
            results.append(await probe(world, 0))
        taken = moved(world)
        assert results == [True, True, True, False, False, False], "each takes 8 MB of each partner"
        await asyncio.sleep(probing.DAY_S)
        assert await probe(world, 0)
        assert moved(world) > taken
        await world.close()

    main()


def test_a_prober_whose_clock_runs_late_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer may be late, or its partner's round trip shorter than it was."""
    monkeypatch.setattr(MessageStream, "round_trip_s", 0.4)

    @virtually
    async def main() -> None:
        world = LinkWorld([(50.0, 50.0)] * 3)
        await world.start()
        assert await probe(world, 0)
        assert [event for peer in world.peers for event in peer.log if event.kind == "peer.offence"] == []
        await world.close()

    main()


def believed(world: LinkWorld) -> dict[tuple[str, str], float]:
    records: dict[Any, Links] = world.records()
    order = [peer.peer_id for peer in world.peers]
    claims = [RateClaim(records[peer].upload or None, records[peer].download or None) for peer in order]
    pairs = swarm_rates(order, claims, records).pairs
    return {(world.peers[i].network.name, world.peers[j].network.name): rate for (i, j), rate in pairs.items()}


@virtually
async def test_two_sites_with_slow_paths_between_them_are_seen_as_such() -> None:
    """Paths of a quarter of a second and a window of 256 KiB carry about 1 MB/s each; inside it is 20 MB/s in all."""
    world = LinkWorld([(20.0, 20.0)] * 6, window_bytes=256 << 10, latency_s=0.002)
    near, far = world.peers[:3], world.peers[3:]
    for one in near:
        for other in far:
            world.internet.set_latency(one.network, other.network, 0.12)
    await world.start(probing=True)
    await until(lambda: all(probed(peer) for peer in world.peers))
    crossing = {(one.network.name, other.network.name) for one in near for other in far}
    crossing |= {(other, one) for one, other in crossing}

    def check() -> None:
        pairs = believed(world)
        assert set(pairs) == crossing
        assert statistics.median(pairs.values()) == pytest.approx(1 * MB, rel=0.35)
        assert [peer.rates().download for peer in world.peers] == pytest.approx([20 * MB] * 6, rel=0.25)

    assert believed(world) == {}  # probes are too short to show it
    for _ in range(3):
        await world.exchange(2_000_000)
        await asyncio.sleep(1.5)
    check()
    await world.close()


@virtually
async def test_caps_hold_for_probes_of_either_side() -> None:
    world = LinkWorld([(20.0, 20.0)] * 3, caps=[("8Mbit", "16Mbit"), (None, None), ("4Mbit", "8Mbit")])
    await world.start()
    assert await probe(world, 0)
    assert world.peers[0].rates().upload == pytest.approx(1 * MB, rel=0.1)
    assert world.peers[0].rates().download == pytest.approx(2 * MB, rel=0.1)
    await asyncio.sleep(PEER_PERIOD_S)
    begun = now()
    assert await probe(world, 1)
    for end in world.peers[2].network.ends:
        assert end.bytes_sent < 0.5 * MB * (now() - begun + 3.0)
    await world.close()


@virtually
async def test_of_many_others_some_are_enough() -> None:
    world = LinkWorld([(5.0, 5.0)] * 18)
    await world.start()
    peer = world.peers[0]
    peer.network.process.context.run(peer.node.spawn, peer.prober.run())
    await until(lambda: bool(probed(peer)))
    assert peer.rates().upload == pytest.approx(5 * MB, rel=0.1)
    assert len(links_of(peer.node, {}).rows) == probing.MAX_PARTNERS
    await world.close()


# ---- at the expense of nobody


@virtually
async def test_nobody_is_in_two_probes_at_once() -> None:
    world = LinkWorld([(5.0, 5.0)] * 4)
    await world.start()
    results = await asyncio.gather(*(probe(world, index) for index in range(4)))
    assert sum(results) <= 1
    await world.close()


@virtually
async def test_other_transfers_go_first() -> None:
    world = LinkWorld([(5.0, 5.0)] * 4)
    await world.start()
    one, other = world.peers[1:3]
    attempt = asyncio.create_task(probe(world, 0))
    await asyncio.sleep(0.5)  # the probe has begun
    begun = now()
    await one.send(other, 1_000_000)
    assert now() - begun < 0.2 + 0.35  # 0.2 s alone, and what was under way
    assert not await attempt
    assert not await probe(world, 0)  # those two are still busy
    await world.close()


@virtually
async def test_a_peer_in_a_transfer_does_not_begin_a_probe() -> None:
    world = LinkWorld([(1.0, 1.0)] * 3)
    await world.start(probing=True)
    await world.peers[0].send(world.peers[1], 20_000_000)
    assert probed(world.peers[0]) == []
    await until(lambda: all(probed(peer) for peer in world.peers), 60.0)
    await world.close()


@virtually
async def test_dead_silent_and_missing_partners() -> None:
    world = LinkWorld([(5.0, 5.0)] * 10)
    await world.start()
    world.internet.kill(world.peers[9].network)
    assert await probe(world, 0)  # one of nine does not matter
    world.internet.stall(world.peers[8].network)
    await asyncio.sleep(PEER_PERIOD_S)
    begun = now()
    assert not await probe(world, 0)
    assert now() - begun < 5.0
    alone = LinkWorld([(5.0, 5.0)])
    await alone.start(probing=True)
    await asyncio.sleep(10.0)
    assert probed(alone.peers[0]) == []
    world.internet.resume(world.peers[8].network)
    await alone.close()
    await world.close()


@virtually
async def test_a_partner_that_dies_in_the_middle_does_not_hold_up_the_probe() -> None:
    world = LinkWorld([(5.0, 5.0)] * 9)
    await world.start()
    later(0.5, lambda: world.internet.kill(world.peers[8].network))
    begun = now()
    assert await probe(world, 0)
    assert now() - begun < 4.0
    assert world.peers[0].rates().upload == pytest.approx(5 * MB, rel=0.1)
    await world.close()


@virtually
async def test_partners_are_left_alone_for_a_while() -> None:
    world = LinkWorld([(5.0, 5.0)] * 2)
    await world.start()
    assert await probe(world, 0)
    assert not await probe(world, 0)
    await asyncio.sleep(PEER_PERIOD_S + 1.0)
    assert await probe(world, 0)
    await world.close()


@virtually
async def test_all_strangers_together_get_so_many_probes() -> None:
    world = LinkWorld([(5.0, 5.0)] * 2)
    await world.start()
    for index in range(MAX_SERVED):
        world.peers[1].prober._served.append(now() + index / 1000)
    with pytest.raises(RejectedError, match="probed often enough"):
        await reserve(world)
    await asyncio.sleep(SERVED_PERIOD_S + 1.0)
    await reserve(world)
    await world.close()


async def reserve(world: LinkWorld) -> None:
    async with world.peers[0].node.open(world.peers[1].peer_id, RESERVE) as stream:
        await stream.send(Reserve())
        await stream.receive(Ready)


@virtually
async def test_a_reservation_does_not_last() -> None:
    world = LinkWorld([(5.0, 5.0)] * 3)
    await world.start()
    async with world.peers[0].node.open(world.peers[1].peer_id, RESERVE) as stream:
        await stream.send(Reserve())
        await stream.receive(Ready)
        begun = now()
        with pytest.raises(RejectedError, match="too long"):
            await stream.receive_end()
        assert now() - begun == pytest.approx(SERVE_S, abs=0.5)
    await world.peers[2].network.process.run(world.peers[2].prober.probe([world.peers[1].peer_id]))
    assert probed(world.peers[2])
    await world.close()


@pytest.mark.parametrize("method", [SINK, SOURCE])
def test_nothing_moves_without_a_reservation(method: str) -> None:
    @virtually
    async def main() -> None:
        world = LinkWorld([(5.0, 5.0)] * 2)
        await world.start()
        async with world.peers[0].node.open(world.peers[1].peer_id, method, bulk=True) as stream:
            with pytest.raises(RejectedError, match="nothing is reserved"):
                await stream.receive(Ready)
        await world.close()

    main()


async def reserved(world: LinkWorld, method: str, act: Callable[[MessageStream], Any]) -> list[str]:
    """Let the first peer reserve the second and do something on a stream of `method`; returns the offences noted."""
    prober, partner = world.peers[:2]
    async with prober.node.open(partner.peer_id, RESERVE) as reservation:
        await reservation.send(Reserve())
        await reservation.receive(Ready)
        async with prober.node.open(partner.peer_id, method, bulk=True) as stream:
            stream.counter.use = BulkUse.PROBE
            with contextlib.suppress(RemoteError):
                await act(stream)
    await asyncio.sleep(1.0)
    return [str(event.fields["what"]) for event in partner.log if event.kind == "peer.offence"]


@virtually
async def test_a_probe_that_brings_too_much_is_cut_off() -> None:
    world = LinkWorld([(None, None)] * 2)
    await world.start()

    async def flood(stream: MessageStream) -> None:
        for _ in range(100):
            await stream.send(Batch(64, 256 << 10))
            for _ in range(64):
                await stream.send_bulk(bytes(256 << 10))

    before = moved(world)
    assert "too many bytes" in (await reserved(world, SINK, flood))[0]
    assert moved(world) - before < MAX_PHASE_BYTES + (8 << 20)
    await world.close()


@virtually
async def test_who_asks_for_bytes_and_takes_none_gets_none() -> None:
    world = LinkWorld([(None, None)] * 2, window_bytes=1 << 20)
    await world.start()

    async def ask(stream: MessageStream) -> None:
        await stream.send(ProbeRequest(MAX_PHASE_BYTES))
        await asyncio.sleep(5.0)

    before = moved(world)
    assert await reserved(world, SOURCE, ask) == []
    assert moved(world) - before < 2 << 20
    await world.close()


# ---- when


@virtually
async def test_doubts_lead_to_another_probe_less_and_less_often_if_groundless() -> None:
    world = LinkWorld([(5.0, 5.0)] * 3)
    await world.start(probing=True)
    await until(lambda: all(probed(peer) for peer in world.peers), 60.0)
    doubting = world.peers[0]

    def doubt() -> None:
        if now() < 900.0:
            doubting.node.access_link.doubt()
            asyncio.get_running_loop().call_later(5.0, doubt)

    doubt()
    await asyncio.sleep(1000.0)
    times = probed(doubting)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 55.0 < pauses[0] < 80.0
    assert pauses[:3] == sorted(pauses[:3])
    assert len(times) < 7
    await world.close()


@virtually
async def test_a_changed_line_is_found_by_a_probe_after_doubts() -> None:
    world = LinkWorld([(5.0, 5.0)] * 3)
    await world.start(probing=True)
    await until(lambda: all(probed(peer) for peer in world.peers), 60.0)
    await asyncio.sleep(60.0)
    world.internet.set_rate(world.peers[0].network, 2 * MB, 8 * MB)
    for _ in range(probing.DOUBTS):
        world.peers[0].node.access_link.doubt()
    await asyncio.sleep(20.0)
    assert world.peers[0].rates().upload == pytest.approx(2 * MB, rel=0.1)
    assert world.peers[0].rates().download == pytest.approx(8 * MB, rel=0.1)
    await world.close()


# ---- in a swarm


@virtually
async def test_a_swarm_measures_itself_while_it_trains() -> None:
    swarm = Swarm(make_spec(800), seed=3)
    lines = {"home": (2.0, 6.0), "lab": (6.0, 6.0), "attic": (1.0, 6.0)}
    for name, (up, down) in lines.items():
        cap = RateCap(1 * MB) if name == "home" else None
        swarm.add(HostSettings(up * MB, down * MB), TrainerSettings(4, 0.1), name=name, max_upload=cap)
    await until(lambda: len(swarm.log.of("links.probed")) == 3, 300.0)
    await asyncio.sleep(40.0)
    expected = {"home": (1.0, 6.0), "lab": (6.0, 2.0), "attic": (1.0, 6.0)}  # nobody sends the lab more than 2 MB/s
    ids = {name: peer.session.peer_id for name, peer in swarm.peers.items()}
    for peer in swarm.peers.values():
        assert peer.session.member is not None
        links = peer.session.member.swarm_view.links()
        assert set(links) == set(ids.values())
        for name, (up, down) in expected.items():
            record = links[ids[name]]
            assert (record.upload, record.download) == pytest.approx((up * MB, down * MB), rel=0.2)
            assert len(record.rows) == 2
        assert links[ids["home"]].upload_cap == 1_000_000
    assert swarm.peers["home"].session.node.access_link.rates().upload_cap == 1e6
    lab = swarm.peers["lab"].session.node.access_link.meter
    assert lab.down.caps == {ids["home"]: 1_000_000 / 2}, "what limits itself says nothing of the lab's line"
    assert {logged.peer for logged in swarm.log.of("links.measured")} == set(lines)
    await swarm.close()


@virtually
async def test_what_a_probe_showed_before_it_was_broken_off_counts() -> None:
    world = LinkWorld([(2.0, 10.0), *[(50.0, 50.0)] * 3])
    await world.start()
    peer = world.peers[0]
    meter = peer.node.access_link.meter
    for ends_after_s, fills in ((0.5, False), (1.3, True)):
        attempt = asyncio.get_running_loop().create_task(probe(world, 0))
        await asyncio.sleep(ends_after_s)
        meter.note_work()
        assert not await attempt
        assert (meter.up.total.value is not None, meter.down.total.value) == (fills, None)
        await asyncio.sleep(PEER_PERIOD_S + 1.0)
    sent_bytes = peer.node.traffic()[0]
    assert await probe(world, 0)
    assert peer.node.traffic()[0] - sent_bytes < 0.1 * MB  # the upload was not filled again
    assert peer.rates().upload == pytest.approx(2 * MB, rel=0.1)
    assert peer.rates().download == pytest.approx(10 * MB, rel=0.1)
    await world.close()


@pytest.mark.parametrize("max_bytes", [2048, 5_000_000])
def test_frames_of_a_probe_grow_with_what_was_sent_and_are_announced_together(max_bytes: int) -> None:
    batches: list[tuple[int, int]] = []
    frames: list[int] = []

    class Wide:
        """A stream over a link without limit."""

        def announce(self, batch: Batch) -> None:
            assert sum(size * count for count, size in batches) == sum(frames)  # all that was announced was sent
            batches.append((batch.frames, batch.size))

        async def send_bulk(self, body: memoryview) -> None:
            assert sum(frames) + body.nbytes <= max_bytes
            assert body.nbytes == probing.FRAME_SIZES[0] or probing.GROWTH * body.nbytes <= sum(frames)
            frames.append(body.nbytes)

        async def receive_end(self) -> None:
            await asyncio.Event().wait()

    run_virtual(probing.fill(Wide(), max_bytes, lambda: None))  # type: ignore[arg-type]
    assert sum(frames) > max_bytes - max(probing.FRAME_SIZES[0], max_bytes // probing.GROWTH)
    assert [size for count, size in batches for _ in range(count)] == frames
    assert len(batches) <= len(probing.FRAME_SIZES)
    assert len(frames) <= 32 + 16 * len(batches)


@virtually
async def test_new_peers_that_come_together_all_probe_and_ask_nobody_too_often() -> None:
    world = LinkWorld([(2.0, 2.0)] * 10)
    asked = {peer.peer_id: 0 for peer in world.peers}
    for peer in world.peers:

        async def count(
            other: PeerId, stream: MessageStream, here: Peer = peer, serve: Any = peer.prober._serve_reservation
        ) -> None:
            asked[here.peer_id] += 1
            await serve(other, stream)

        peer.node.serve(RESERVE, count)
    await world.start(probing=True)
    await until(lambda: all(probed(peer) for peer in world.peers), 120.0)
    assert max(asked.values()) < 3 * 10
    await world.close()


@virtually
async def test_a_peer_that_admits_and_then_breaks_off_is_done_without() -> None:
    world = LinkWorld([(5.0, 5.0)] * 5)
    await world.start()
    liar, *others = sorted(world.peers, key=lambda peer: peer.peer_id)

    async def admit(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(Reserve)
        await stream.send(Ready())
        await asyncio.sleep(3.0)
        raise RejectedError("after all not", code=RefusalCode.BUSY)

    liar.node.serve(RESERVE, admit)
    for peer in others:
        peer.network.process.run(peer.prober.run())
    await until(lambda: all(probed(peer) for peer in others), 900.0)
    assert [peer.rates().upload for peer in others] == pytest.approx([5 * MB] * 4, rel=0.1)
    await world.close()


@virtually
async def test_who_reserves_and_never_probes_keeps_nobody_from_probing() -> None:
    world = LinkWorld([(5.0, 5.0)] * 4)
    await world.start()
    liar, *victims = world.peers

    async def hold(victim: Peer) -> None:
        while True:
            with contextlib.suppress(RemoteError):
                async with liar.node.open(victim.peer_id, RESERVE) as stream:
                    await stream.send(Reserve())
                    await stream.receive(Ready)
                    await asyncio.sleep(0.95 * RESERVE_S)
                    await stream.finish()
            await asyncio.sleep(0.02)

    for victim in victims:
        liar.network.process.run(hold(victim))
    await asyncio.sleep(1.0)
    for victim in victims:
        victim.network.process.run(victim.prober.run())
    await until(lambda: all(probed(victim) for victim in victims), 600.0)
    await world.close()
