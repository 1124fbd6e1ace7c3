from __future__ import annotations

import asyncio

from minga.core.aio import watching
from minga.simulation.virtual_time import run_virtual


def test_looks_come_at_once_and_in_turn_until_one_has_seen_it() -> None:
    """The first one comes in the next turn of the loop, when what is watched is under way."""
    looks: list[float] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        begun_s = clock()

        def look() -> bool:
            looks.append(round(clock() - begun_s, 6))
            return len(looks) == 4

        with watching(0.5, look):
            assert looks == []
            await asyncio.sleep(10.0)

    run_virtual(main())
    assert looks == [0.0, 0.5, 1.0, 1.5]


def test_nothing_is_looked_at_after_the_end() -> None:
    looks: list[float] = []

    def look() -> bool:
        looks.append(asyncio.get_running_loop().time())
        return False

    async def main() -> None:
        with watching(0.5, look):
            pass
        await asyncio.sleep(1.0)
        assert looks == []
        with watching(0.5, look):
            await asyncio.sleep(0.7)
        await asyncio.sleep(5.0)

    run_virtual(main())
    assert len(looks) == 2
