from __future__ import annotations

import asyncio
import contextvars
import math
import threading

import pytest

from minga.network.virtual.process import VirtualProcess
from minga.simulation import DeadlockError, VirtualTimeLimitError, run_virtual


def test_clock_jumps_to_the_next_timer_exactly() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for pause in (0.1, 1e-6, 86_400 * 365, 0):
            await asyncio.sleep(pause)
            times.append(loop.time())
        return times

    assert run_virtual(main(), start=5.0) == [
        5.0,
        5.1,
        5.1 + 1e-6,
        5.1 + 1e-6 + 86_400 * 365,
        5.1 + 1e-6 + 86_400 * 365,
    ]


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(1.0, order.append, number)
        for number in range(100, 110):
            loop.call_later(0.5, order.append, number).cancel()
        await asyncio.sleep(2)
        return order

    assert run_virtual(main()) == list(range(100))


def test_executor_work_runs_on_this_thread_and_yields_once() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def fail() -> None:
        raise LookupError("inside")

    async def main() -> None:
        variable.set(7)
        seen = []
        asyncio.get_running_loop().call_soon(seen.append, "others ran")
        assert await asyncio.to_thread(lambda: (threading.get_ident(), variable.get())) == (threading.get_ident(), 7)
        assert seen == ["others ran"]
        with pytest.raises(LookupError, match="inside"):
            await asyncio.to_thread(fail)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.get_running_loop().run_in_executor(None, next, iter(()))
        future = asyncio.get_running_loop().run_in_executor(None, int)
        future.cancel()
        await asyncio.sleep(0)
        assert future.cancelled()
        assert threading.active_count() == before

    before = threading.active_count()
    run_virtual(main())


@pytest.mark.parametrize("endless", [False, True], ids=["no timer", "a timer at infinity"])
def test_a_deadlock_names_the_waiting_tasks(endless: bool) -> None:
    async def stuck_forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        if endless:
            asyncio.get_running_loop().call_at(math.inf, print)
        task = asyncio.create_task(stuck_forever(), name="the-culprit")
        await asyncio.sleep(3)
        await task

    with pytest.raises(DeadlockError, match=r"at 3\.0.*\n.*main.*\n.*the-culprit: .*stuck_forever at .*locks\.py"):
        run_virtual(main())


def test_a_deadlock_among_many_is_described_briefly() -> None:
    async def main() -> None:
        await asyncio.gather(*(asyncio.Event().wait() for _ in range(1000)))

    with pytest.raises(DeadlockError, match="and 981 more tasks") as caught:
        run_virtual(main())
    assert len(str(caught.value)) < 10_000


def test_the_limit_ends_what_never_ends() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(VirtualTimeLimitError, match=r"not done at 110\.0.*\n.*main"):
        run_virtual(main(), start=10.0, limit_s=100.0)


def test_leftover_tasks_are_cancelled_in_order_and_may_clean_up() -> None:
    ended: list[tuple[int, float]] = []

    async def linger(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(10 - number)
            ended.append((number, asyncio.get_running_loop().time()))

    async def main() -> str:
        for number in range(3):
            asyncio.create_task(linger(number))  # noqa: RUF006  # the loop keeps it
        await asyncio.sleep(1)
        return "result"

    assert run_virtual(main()) == "result"
    assert ended == [(2, 9.0), (1, 10.0), (0, 11.0)]


def test_sets_of_tasks_have_the_same_order_in_each_run() -> None:
    async def main() -> list[str]:
        ballast = [bytearray(size) for size in sizes]
        waiting = asyncio.Event()
        tasks = {asyncio.create_task(waiting.wait(), name=f"t{number}") for number in range(50)}
        await asyncio.sleep(1)
        waiting.set()
        done, _ = await asyncio.wait(tasks)
        del ballast
        return [task.get_name() for task in done]

    sizes = [1]
    first = run_virtual(main())
    sizes = list(range(1, 4000, 7))
    assert run_virtual(main()) == first


def test_a_stopped_process_stands_still_with_all_its_timers_and_tasks() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        log: list[tuple[str, float]] = []
        process = VirtualProcess("p")

        async def child() -> None:
            await asyncio.sleep(3)
            log.append(("child", loop.time()))

        async def parent() -> None:
            loop.call_later(2, lambda: log.append(("timer", loop.time())))
            loop.call_later(2.5, lambda: log.append(("cancelled", loop.time()))).cancel()
            task = asyncio.create_task(child())
            await event.wait()
            log.append(("event", loop.time()))
            await task

        event = asyncio.Event()
        task = process.run(parent())
        await asyncio.sleep(1)
        process.stop()
        event.set()
        await asyncio.sleep(9)
        assert log == []
        process.resume()
        await task
        return log

    assert run_virtual(main()) == [("event", 10.0), ("timer", 10.0), ("child", 10.0)]


def test_a_process_left_stopped_does_not_hang_the_end() -> None:
    process = VirtualProcess("p")
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ended.append(True)

    async def main() -> None:
        process.run(work())
        await asyncio.sleep(1)
        process.stop()
        await asyncio.sleep(10)

    run_virtual(main())
    assert ended == [True]


def test_a_killed_process_loses_all_tasks_also_stopped_ones() -> None:
    async def main() -> None:
        process = VirtualProcess("p")

        async def parent() -> None:
            asyncio.create_task(asyncio.Event().wait())  # noqa: RUF006
            await asyncio.Event().wait()

        task = process.run(parent(), name="parent")
        await asyncio.sleep(1)
        assert len(process.tasks) == 2
        process.stop()
        process.kill()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        assert task.cancelled()
        assert not process.tasks

    run_virtual(main())
