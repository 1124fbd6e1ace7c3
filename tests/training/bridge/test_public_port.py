"""The port of a run with strangers, between the training thread and the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minga.core.errors import ClosedError, ConfigurationError
from minga.training.bridge import assigned_port
from minga.training.bridge.assigned_port import AssignedPort, GradientTask
from minga.training.bridge.thread_bridge import ThreadTask
from tests.worlds.ones_replica import OnesReplica
from tests.worlds.swarm_tools import virtually


def close(port: AssignedPort) -> None:
    port.close(ClosedError("it is over"))


def fail(port: AssignedPort) -> None:
    """The training thread fails in the first work that waits."""
    work = port.poll()
    assert isinstance(work, ThreadTask)
    with pytest.raises(ClosedError):
        port.finish(work)


@pytest.mark.parametrize("end", [close, fail])
def test_whoever_waits_hears_what_closed_the_port(end: Callable[[AssignedPort], None]) -> None:
    def be_over() -> None:
        raise ClosedError("it is over")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        port = AssignedPort(loop, OnesReplica().new_sum, micro_batches=2, size=4)
        computing = [loop.create_task(port.compute(GradientTask(bytes([number]) * 32))) for number in range(2)]
        await asyncio.sleep(0)
        port.want_batch()
        port.next_batch()  # the first one is under way
        requested = [port.request("apply", be_over) for _ in range(2)]
        end(port)
        async with asyncio.timeout(10.0):
            outcomes = await asyncio.gather(*computing, *requested, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["it is over"] * 4
        with pytest.raises(ClosedError, match="it is over"):
            await port.compute(GradientTask(bytes(32)))

    asyncio.run(main())


@virtually
async def test_a_micro_batch_that_failed_leaves_the_model_at_its_present_step_and_comes_again() -> None:
    model, seen = ["present"], list[str]()
    replica = OnesReplica()
    port = AssignedPort(asyncio.get_running_loop(), replica.new_sum, micro_batches=2, size=4)

    def to_the_past() -> None:
        seen.append(model[0])
        model[0] = "past"

    def back() -> None:
        model[0] = seen.pop()

    def look() -> None:
        assert model == ["past"]

    replica.before_adding = look
    done = asyncio.ensure_future(port.compute(GradientTask(bytes(32), to_the_past, back)))
    await asyncio.sleep(0)
    numbers = []
    for fails in (True, False, True, True, False):
        port.want_batch()
        assert port.poll() is None
        assert model == ["present"]
        numbers.append(port.next_batch().number)
        with pytest.raises(ConfigurationError, match="an earlier step"):
            port.check_whole()
        if not fails:
            assert port.add(4)
        assert port.take_back() is fails
        port.check_whole()
    assert model == ["present"]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] == numbers[4]
    assert (await done).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("where", ["the way to the past", "the sum", "the way back", "the end of the sum"])
def test_an_interrupt_amid_a_micro_batch_of_all_closes_the_port(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a micro-batch in a sum is an attack to whoever computes it again."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        replica = OnesReplica()
        port = AssignedPort(asyncio.get_running_loop(), replica.new_sum, micro_batches=1, size=4)
        task = GradientTask(
            bytes(32), *(interrupt if where == way else lambda: None for way in ("the way to the past", "the way back"))
        )
        if where == "the sum":
            replica.before_adding = interrupt
        elif where == "the end of the sum":
            monkeypatch.setattr(assigned_port, "is_finite", interrupt)
        computing = [asyncio.ensure_future(port.compute(each)) for each in (task, GradientTask(bytes(32)))]
        await asyncio.sleep(0)
        port.want_batch()
        with pytest.raises(KeyboardInterrupt):
            port.add(port.next_batch().size)
        for done in computing:
            with pytest.raises(ClosedError, match=r"could not (begin|end) a micro-batch .*: KeyboardInterrupt"):
                await asyncio.wait_for(done, 10.0)
        with pytest.raises(ClosedError, match="could not"):
            port.check_whole()

    asyncio.run(main())
