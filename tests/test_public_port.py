from __future__ import annotations

import asyncio

import torch
from swarm_tools import virtually

from minga.training._public_port import GradientTask, PublicPort


@virtually
async def test_a_micro_batch_that_failed_leaves_the_model_at_its_present_step_and_comes_again() -> None:
    model, seen = ["present"], list[str]()
    port = PublicPort(asyncio.get_running_loop(), lambda: torch.zeros(2), micro_batches=2, size=4)

    def to_the_past() -> None:
        seen.append(model[0])
        model[0] = "past"

    def back() -> None:
        model[0] = seen.pop()

    def accumulate(vector: torch.Tensor) -> bool:
        assert model == ["past"]
        vector += 1.0
        return True

    done = asyncio.ensure_future(port.compute(GradientTask(bytes(32), to_the_past, back)))
    await asyncio.sleep(0)
    numbers = []
    for fails in (True, False, True, True, False):
        port.want_batch()
        assert port.poll() is None
        assert model == ["present"]
        numbers.append(port.next_batch().number)
        if not fails:
            port.add(accumulate, 4)
        assert port.take_back() is fails
    assert model == ["present"]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] == numbers[4]
    assert (await done).tolist() == [2.0, 2.0]
