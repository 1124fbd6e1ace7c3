"""Caps: kept to within a few percent, fairly, and without silencing anybody."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from minga.core.errors import RejectedError, SilentError
from minga.core.rate_cap import DailyWindow, RateCap
from minga.network.bandwidth.access_link import MOST_OWED_S, SMALLEST_PIECE_BYTES, AccessLink, TokenBucket
from minga.network.bandwidth.meter import SETTLE_S
from minga.network.interface import PeerId
from minga.network.rpc.keepalive import SILENCE_S
from minga.network.rpc.multiplexer import WINDOW_BYTES
from minga.network.rpc.stream import MessageStream
from tests.worlds.link_world import FRAME_BYTES, MB, LinkWorld
from tests.worlds.swarm_tools import virtually

pytestmark = pytest.mark.promise("caps")


def now() -> float:
    return asyncio.get_running_loop().time()


def pacer(rate: float | None) -> TokenBucket:
    return TokenBucket(None if rate is None else RateCap(rate), lambda: 0.0)


async def drain(pacer: TokenBucket, size: int, *, urgent: bool = False, piece: int | None = None) -> float:
    """Take `size` bytes piece by piece; returns when the last was let through."""
    while size > 0:
        taken = min(size, piece or pacer.piece_bytes)
        await pacer.take(taken, urgent=urgent)
        size -= taken
    return now()


@pytest.mark.parametrize("rate", [12_500.0, 125e6])
@pytest.mark.parametrize("streams", [1, 50])
def test_the_rate_is_kept_whatever_waits(rate: float, streams: int) -> None:
    @virtually
    async def main() -> None:
        paced = pacer(rate)
        await asyncio.gather(*(drain(paced, int(10 * rate / streams)) for _ in range(streams)))
        assert now() == pytest.approx(10.0, rel=0.02)

    main()


@virtually
async def test_without_a_cap_nothing_waits() -> None:
    for cap in (None, RateCap(math.inf)):
        free = TokenBucket(cap, lambda: 0.0)
        assert free.rate is None
        await drain(free, 1 << 30)
        free.charge(1 << 40)
        await free.take(1)
    assert now() == 0.0


@virtually
async def test_idle_time_is_not_saved_up() -> None:
    paced = pacer(1e6)
    await asyncio.sleep(1000.0)
    begun = now()
    await drain(paced, 1_000_000)
    assert now() - begun == pytest.approx(1.0, abs=0.15)


@virtually
async def test_streams_share_evenly_and_every_one_moves_often() -> None:
    paced = pacer(1e5)
    got = [0] * 20
    longest_gap = [0.0] * 20

    async def stream(index: int) -> None:
        last = now()
        while True:
            size = paced.piece_bytes
            await paced.take(size)
            got[index] += size
            longest_gap[index], last = max(longest_gap[index], now() - last), now()

    tasks = [asyncio.create_task(stream(i)) for i in range(20)]
    await asyncio.sleep(20.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(got) == pytest.approx(20 * 1e5, rel=0.03)
    assert max(got) < 1.25 * min(got)
    assert max(longest_gap) < SILENCE_S / 2


@virtually
async def test_messages_go_before_bulk_and_count_too() -> None:
    paced = pacer(1e5)
    bulk = asyncio.create_task(drain(paced, 1_000_000))
    waits = []
    for _ in range(50):
        await asyncio.sleep(0.1)
        asked = now()
        await paced.take(1000, urgent=True)
        waits.append(now() - asked)
    assert max(waits) < 0.15
    assert await bulk == pytest.approx(10.5, rel=0.02)


@virtually
async def test_what_was_not_asked_for_is_owed() -> None:
    paced = pacer(1e5)
    paced.charge(500_000)
    await paced.take(SMALLEST_PIECE_BYTES)
    assert now() == pytest.approx(5.0, abs=0.1)
    for _ in range(1000):  # more than anybody can pay back
        paced.charge(500_000)
    await paced.take(SMALLEST_PIECE_BYTES)
    assert now() == pytest.approx(5.0 + MOST_OWED_S, abs=0.1)


@virtually
async def test_who_is_cancelled_takes_nothing_and_blocks_nobody() -> None:
    paced = pacer(1e5)
    tasks = [asyncio.create_task(paced.take(50_000, urgent=i % 2 == 0)) for i in range(40)]
    await asyncio.sleep(0.1)
    for task in tasks[:39]:
        task.cancel()
    await tasks[39]
    assert now() < 1.2


@virtually
async def test_schedules_are_followed_while_bytes_wait() -> None:
    origin = 1_767_225_600.0
    local = time.localtime(origin)
    minute = local.tm_hour * 60 + local.tm_min
    paced = TokenBucket(
        RateCap(1e5, (DailyWindow((minute + 1) % 1440, (minute + 2) % 1440, 1e6),)), lambda: origin + now()
    )
    end_of_minute = 60.0 - local.tm_sec
    await drain(paced, int(1e5 * end_of_minute + 1e6 * 30))
    assert now() == pytest.approx(end_of_minute + 30.0, rel=0.02)


# ---- on the virtual network


async def two_way(caps: list[tuple[str | None, str | None]], size: int) -> tuple[LinkWorld, float]:
    world = LinkWorld([(20, 20)] * len(caps), caps=caps)
    await world.start()
    seconds = await world.exchange(size)
    return world, seconds


@virtually
async def test_an_upload_cap_holds_over_all_streams() -> None:
    world, seconds = await two_way([("8Mbit", None), (None, None), (None, None), (None, None)], 2_000_000)
    moved = world.peers[0].network.ends
    sent = sum(end.bytes_sent for end in moved)
    assert sent / seconds == pytest.approx(1e6, rel=0.05)
    await asyncio.sleep(SETTLE_S)
    rates = world.peers[0].rates()
    assert (rates.upload_cap, rates.download_cap) == (1e6, None)
    assert rates.upload == pytest.approx(1e6, rel=0.05)
    assert rates.limited_by.startswith("upload cap, download")
    await world.close()


@virtually
async def test_a_download_cap_holds_over_all_streams() -> None:
    world, seconds = await two_way([(None, "8Mbit"), (None, None), (None, None), (None, None)], 2_000_000)
    assert world.peers[0].received / seconds == pytest.approx(1e6, rel=0.05)
    await asyncio.sleep(SETTLE_S)
    assert world.peers[0].rates().download == pytest.approx(1e6, rel=0.05)
    await world.close()


@virtually
async def test_pulses_come_in_time_through_a_narrow_cap_in_both_directions() -> None:
    """Frames of 32 KiB at 100 kbit/s take seconds each; nobody may take that for silence."""
    world, seconds = await two_way([("100kbit", "100kbit"), (None, None), (None, None)], 3 * FRAME_BYTES)
    assert seconds == pytest.approx(2 * 3 * FRAME_BYTES / 12_500.0, rel=0.2)
    await world.close()


@virtually
async def test_whoever_takes_an_answer_at_once_is_not_cut_off_for_the_cap_of_who_sends_it() -> None:
    world = LinkWorld([(20, 20)] * 2, caps=[("8Mbit", None)])
    await world.start()
    capped, other = world.peers
    refused: list[SilentError] = []

    async def give(_: PeerId, stream: MessageStream) -> None:
        try:
            async with stream.taken_within(1.0):
                await stream.send_bulk(bytes(2 * WINDOW_BYTES))
        except SilentError as error:
            refused.append(error)
            raise

    capped.node.serve("test.give", give)
    async with other.node.open(capped.peer_id, "test.give") as stream:
        await stream.receive_bulk_into(memoryview(bytearray(2 * WINDOW_BYTES)))
    assert not refused
    async with other.node.open(capped.peer_id, "test.give") as stream:
        await stream.finish()
        await asyncio.sleep(3.0)  # it never reads
        assert refused
    await world.close()


@virtually
async def test_calls_are_answered_promptly_beside_capped_bulk() -> None:
    world = LinkWorld([(20, 20)] * 2, caps=[("800kbit", None)])
    await world.start()
    capped, other = world.peers
    bulk = asyncio.create_task(capped.send(other, 500_000))
    waits = []
    for _ in range(10):
        await asyncio.sleep(0.3)
        begun = now()
        async with other.node.open(capped.peer_id, "no such method") as stream:
            with pytest.raises(RejectedError, match="no such method"):
                await stream.receive(dict)
        waits.append(now() - begun)
    await bulk
    assert max(waits) < 0.5
    await world.close()


@virtually
async def test_a_line_slower_than_its_cap_is_measured_as_it_is() -> None:
    world = LinkWorld([(1, 1), (20, 20)], caps=[("16Mbit", "16Mbit")])
    await world.start()
    for _ in range(3):
        await world.exchange(2_000_000)
        await asyncio.sleep(2.0)
    rates = world.peers[0].rates()
    assert rates.upload == pytest.approx(1 * MB, rel=0.1)
    assert rates.download == pytest.approx(1 * MB, rel=0.1)
    assert rates.limited_by == "upload line, download line"
    await world.close()


@virtually
async def test_rates_without_measurements() -> None:
    def lines(*caps: Any) -> AccessLink:
        return AccessLink(now, lambda: 0.0, *caps)

    assert lines().rates().limited_by == "upload unknown, download unknown"
    capped = lines(RateCap(1e6), RateCap(math.inf)).rates()
    assert (capped.upload, capped.upload_cap, capped.download_cap) == (None, 1e6, None)
    assert capped.limited_by == "upload cap, download unknown"
