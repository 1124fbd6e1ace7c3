"""For how long a trainer is held at its boundary; in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minga.training.life.trainer_hold import LEAST_S, LOOK_S, TrainerHold
from tests.worlds.swarm_tools import virtually


@virtually
async def hold_until(seconds: float, micro_batch_s: float, *, counts_late: bool) -> bool:
    """Whether a trainer is held so long after its boundary, which came when others were ahead."""
    held = list[bool]()
    port: Any = SimpleNamespace(
        facts=SimpleNamespace(counts_late=counts_late),
        micro_batch_s=micro_batch_s,
        hold=lambda *, holding: held.append(holding),
    )
    view: Any = SimpleNamespace(is_over=lambda: not counts_late, is_behind=lambda step: True)
    with TrainerHold(port, view).beginning_if_behind(3):
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(seconds)
    return held[-1]


@pytest.mark.parametrize("counts_late", [True, False])
@pytest.mark.parametrize("micro_batch_s", [1.0, 20.0])
def test_who_is_held_goes_on_also_if_those_that_were_ahead_are_gone(counts_late: bool, micro_batch_s: float) -> None:
    """It was held for good: for a round alone it has too few samples, and nothing else let it go."""
    longest_s = max(LEAST_S, micro_batch_s)
    assert hold_until(longest_s - 1.0, micro_batch_s, counts_late=counts_late), "its group may be forming"
    assert not hold_until(longest_s + 1.0, micro_batch_s, counts_late=counts_late)
