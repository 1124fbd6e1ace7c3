from __future__ import annotations

import asyncio

import pytest

from minga.core.aio import racing
from tests.worlds.swarm_tools import virtually


@virtually
async def test_outcomes_come_in_order_and_the_rest_is_cancelled() -> None:
    ended: list[str] = []

    async def attempt(seconds: float) -> float:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)  # cleans up, which is waited for
            ended.append(f"cancelled {seconds:g}")
            raise
        if seconds == 2.0:
            raise ValueError("in vain")
        return seconds

    seen: list[object] = []
    async with racing(map(attempt, (5.0, 3.0, 2.0, 1.0, 4.0))) as outcomes:
        for outcome in outcomes:
            try:
                seen.append(await outcome)
            except ValueError as error:
                seen.append(str(error))
            if seen[-1] == 3.0:
                break
    assert seen == [1.0, "in vain", 3.0]
    assert ended == ["cancelled 5", "cancelled 4"]
    assert asyncio.get_running_loop().time() == 4.0


@virtually
async def test_nobody_races_and_an_error_ends_the_race() -> None:
    async with racing(()) as outcomes:
        assert list(outcomes) == []
    waiting = asyncio.Event()

    async def attempt() -> None:
        await waiting.wait()

    with pytest.raises(KeyError):
        async with racing([attempt(), attempt()]):
            raise KeyError
    assert asyncio.all_tasks() == {asyncio.current_task()}
