"""Parts of different size advance together, and nobody is held back without need."""

from __future__ import annotations

import asyncio

from minga.averaging.allreduce.send_order import SendOrder
from tests.worlds.swarm_tools import virtually


async def send_all(
    sizes: dict[int, int], *, seconds: float, chunk_s: dict[int, float], chunk_bytes: dict[int, int] | None = None
) -> dict[int, list[float]]:
    """Send parts of `sizes` chunks, a chunk of part i taking `chunk_s[i]` seconds; returns when each chunk began."""
    loop = asyncio.get_running_loop()
    turns, begun = SendOrder(loop.time, seconds), loop.time()
    times: dict[int, list[float]] = {part: [] for part in sizes}

    async def send(part: int) -> None:
        key = (0, part)
        for _ in range(sizes[part]):
            await turns.wait(key)
            times[part].append(loop.time() - begun)
            await asyncio.sleep(chunk_s[part])
            turns.sent(key)
            turns.returned(key)
        turns.end(key)

    for part, size in sizes.items():
        turns.begin((0, part), size, size * (chunk_bytes or {}).get(part, 1000))
    await asyncio.gather(*(send(part) for part in sizes))
    return times


@virtually
async def test_small_parts_do_not_all_go_first() -> None:
    sizes = {0: 100, **dict.fromkeys(range(1, 9), 1)}
    times = await send_all(sizes, seconds=100.0, chunk_s=dict.fromkeys(sizes, 1.0))
    firsts = sorted(times[part][0] for part in range(1, 9))
    gaps = [after - before for before, after in zip([0.0, *firsts], [*firsts, 100.0], strict=True)]
    assert max(gaps) < 30.0, "they are spread over the round"
    assert times[0][-1] < 100.0, "and cost the large part nothing"


@virtually
async def test_all_members_send_the_chunks_of_a_part_at_the_same_time() -> None:
    of_first = await send_all({1: 100, 2: 2, 3: 2}, seconds=100.0, chunk_s=dict.fromkeys((1, 2, 3), 1.0))
    of_second = await send_all({0: 2, 1: 100, 3: 2}, seconds=100.0, chunk_s=dict.fromkeys((0, 1, 3), 1.0))
    assert of_first[3] == of_second[3]
    assert of_first[3] != of_first[2]


@virtually
async def test_no_small_part_gets_far_ahead_of_a_large_one() -> None:
    times = await send_all({0: 50, 1: 25}, seconds=500.0, chunk_s={0: 1.0, 1: 0.1})
    assert all(fast >= slow - 3.5 for fast, slow in zip(times[1], times[0][::2], strict=True)), (
        "a 25th of the round, and a chunk"
    )


@virtually
async def test_parts_alike_do_not_wait_for_each_other() -> None:
    times = await send_all({0: 50, 1: 50, 2: 60}, seconds=500.0, chunk_s={0: 1.0, 1: 0.1, 2: 1.0})
    assert times[1][-1] < 6.0


@virtually
async def test_it_is_the_bytes_that_make_a_part_larger_and_not_the_chunks() -> None:
    sizes, chunk_s = {0: 20, 1: 20}, {0: 1.0, 1: 0.1}
    apart = await send_all(sizes, seconds=500.0, chunk_s=chunk_s, chunk_bytes={0: 3000, 1: 1000})
    assert apart[1][-1] > 15.0
    alike = await send_all(sizes, seconds=500.0, chunk_s=chunk_s)
    assert alike[1][-1] < 3.0


@virtually
async def test_a_part_that_is_stuck_holds_nobody_back() -> None:
    times = await send_all({0: 10, 1: 5}, seconds=1000.0, chunk_s={0: 150.0, 1: 0.1})
    assert times[1][-1] < 150.0


@virtually
async def test_without_a_prediction_and_after_its_time_all_may_go() -> None:
    free = await send_all({0: 20, 1: 10}, seconds=0.0, chunk_s={0: 1.0, 1: 0.1})
    assert free[1][-1] < 1.0
    late = await send_all({0: 200, 1: 100}, seconds=20.0, chunk_s={0: 1.0, 1: 0.1})
    assert late[1][-1] < 30.0


@virtually
async def test_nobody_gets_far_ahead_of_the_results() -> None:
    loop = asyncio.get_running_loop()
    turns, begun, key = SendOrder(loop.time, 100.0), loop.time(), (0, 0)
    turns.begin(key, 200, 200_000)
    times = []

    async def send() -> None:
        for _ in range(50):
            await turns.wait(key)
            times.append(loop.time() - begun)
            turns.sent(key)

    sending = asyncio.create_task(send())
    for second in range(1, 6):
        await asyncio.sleep(1.0)
        assert len(times) == 23 + second, "a window of 0.12 of the part, and one more for each result"
        turns.returned(key)
    await sending
    assert times[28] == 5.0
    assert times[29] == 10.0, "where no results come for a while nobody waits"


@virtually
async def test_a_part_of_few_chunks_has_no_window() -> None:
    turns, key = SendOrder(asyncio.get_running_loop().time, 100.0), (0, 0)
    turns.begin(key, 8, 8_000)
    async with asyncio.timeout(1.0):
        for _ in range(8):
            await turns.wait(key)
            turns.sent(key)


@virtually
async def test_who_waits_for_a_part_goes_on_when_that_ends() -> None:
    loop = asyncio.get_running_loop()
    turns = SendOrder(loop.time, seconds=1000.0)
    turns.begin((0, 0), 10, 10_000)
    turns.begin((0, 1), 5, 1000)
    begun = loop.time()
    loop.call_later(2.0, turns.end, (0, 0))
    for _ in range(5):
        await turns.wait((0, 1))
        turns.sent((0, 1))
        turns.returned((0, 1))
    assert loop.time() - begun == 2.0
