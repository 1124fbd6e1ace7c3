from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.messages import GroupMember, Part, Plan
from minga.network.interface import Address, PeerId
from minga.training.agreement.between_rounds import ParameterAverage


def test_parameters_are_reduced_anew_where_the_step_adopted_an_earlier_result() -> None:
    plans: list[Plan] = []

    async def reduce(
        plan: Plan, layout: VectorLayout, values: torch.Tensor, weight: int, mean: torch.Tensor, *, most_weight: int
    ) -> None:
        assert most_weight == 1, "all parameters count alike"
        plans.append(plan)

    async def request(_: str, work: Any) -> Any:
        return work()

    vector = SimpleNamespace(new=lambda: torch.zeros(4), layout=SimpleNamespace(numels=(4,)), parameters_numel=4)
    replica = SimpleNamespace(vector=vector, read_values=lambda: torch.ones(4), write_values=lambda mean: None)
    average = ParameterAverage(SimpleNamespace(reduce=reduce), replica, SimpleNamespace(request=request))  # type: ignore[arg-type]
    peer = PeerId("1" * 64)
    adopting = Plan(
        "a" * 32,
        3,
        (GroupMember(Address(peer), True),),
        (Part(4, 0),),
        1 << 16,
        adopts="b" * 32,
        holders=(0,),
        view=(peer,),
    )
    asyncio.run(average.take(adopting, 10.0))
    assert (plans[0].adopts, plans[0].holders, plans[0].view) == ("", (), ())
    assert plans[0].round_id not in ("a" * 32, "b" * 32)
