"""Tasks that are not needed any more are over when `end` returns, and nobody complains about what they raised."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from minga.core.aio import end
from minga.simulation.virtual_time import run_virtual


def test_running_done_and_failed_tasks_are_over_without_a_complaint() -> None:
    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        steps = []

        async def fail() -> None:
            raise ValueError("no")

        async def linger() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned up")

        async def be_done() -> int:
            return 3

        tasks = [loop.create_task(fail()), loop.create_task(linger()), loop.create_task(be_done())]
        together = asyncio.gather(fail(), be_done())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert together.done()
        await end(*tasks, together)
        assert steps == ["cleaned up"]
        assert [task.done() for task in tasks] == [True] * 3
        assert tasks[1].cancelled()
        assert tasks[2].result() == 3
        del tasks, together
        gc.collect()
        assert complaints == []

    run_virtual(main())


def test_tasks_that_are_over_take_no_turn() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_task(asyncio.sleep(0))
        await done
        turns: list[int] = []
        loop.call_soon(turns.append, 1)
        await end(done)
        await end()
        assert turns == []

    run_virtual(main())
