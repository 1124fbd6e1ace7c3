"""When a peer is told that what it computes is worth nothing to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.averaging.messages import Plan, Report
from minga.core.events.training import TrainingTooSlow
from minga.training.life.worth import STEPS, WorthNotice
from tests.worlds.swarm_tools import virtually


def told(limits: Sequence[int], micro_batch_s: float, steps_s: Sequence[float]) -> list[tuple[int, str]]:
    """Step and words of each notice, where the plan of each step leaves this peer so many samples."""

    @virtually
    async def main() -> list[tuple[int, str]]:
        events: list[TrainingTooSlow] = []
        node = SimpleNamespace(peer_id="me", events=SimpleNamespace(emit=events.append))
        notice = WorthNotice(cast(Any, node))
        report = SimpleNamespace(micro_batch=16, micro_batch_s=micro_batch_s, rate=1.0)
        for step, (limit, seconds) in enumerate(zip(limits, steps_s, strict=True)):
            await asyncio.sleep(seconds)
            plan = SimpleNamespace(step=step, limits=(64, limit), resting=(), twins=(), rank_of=lambda _: 1)
            notice.note(cast(Plan, plan), cast(Report, report), 64)
        return [(event.step, event.why) for event in events]

    return cast(list[tuple[int, str]], main())


def test_a_peer_whose_micro_batches_last_longer_than_steps_is_told_once() -> None:
    ((step, why),) = told([0] * 9, 0.5, [0.02] * 9)
    assert step == 3, "the first step has no known length"
    assert why.startswith(
        "a micro-batch of 16 samples takes 500 ms here, and all peers together take a step in 20 ms; smaller"
    )


@pytest.mark.parametrize(
    ("limits", "micro_batch_s", "steps_s"),
    [
        pytest.param([0] * 9, 0.03, [0.3] * 9, id="a micro-batch that fits into a step ten times"),
        pytest.param([64, 0, 0] * 3, 0.5, [0.02] * 9, id="limits that leave something again"),
        pytest.param([0] * 10, 0.5, [0.02, 0.7] * 5, id="steps of which only some are short"),
    ],
)
def test_a_peer_that_is_left_nothing_for_another_reason_is_not_told(
    limits: list[int], micro_batch_s: float, steps_s: list[float]
) -> None:
    assert not told(limits, micro_batch_s, steps_s)


def test_a_peer_whose_samples_find_no_room_in_three_of_four_steps_is_told_once() -> None:
    """Its micro-batches are short enough: the others fill the target before it has its own."""
    ((step, why),) = told([0, 0, 0, 64] * 11, 0.03, [0.3] * 44)
    assert step == STEPS - 1
    assert why.startswith(
        "the others fill the target of 64 samples a step, and in the last 20 steps this peer was wanted"
    )
    assert "raise training.target_batch_size" in why
    assert not told([0, 0, 64] * 15, 0.03, [0.3] * 45)
