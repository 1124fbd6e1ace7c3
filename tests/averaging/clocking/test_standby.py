"""A peer that was asked to rest: how long it believes that this helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from minga.averaging.clocking.standby import LONGEST_UNWILLING_S, UNKNOWN_STEP_S, UNWILLING_S, Standby
from minga.core.events.averaging import PlanRestedInVain
from tests.worlds.swarm_tools import virtually as run_in_virtual_time

pytestmark = pytest.mark.promise("the-plan-and-lies-about-rates")

virtually: Callable[..., Any] = partial(run_in_virtual_time, limit_s=1e8)


class Sleeper:
    """A peer that takes steps of a given duration, and notes what it was told to do."""

    def __init__(self) -> None:
        self.rests: list[bool] = []
        self.told: list[Any] = []
        contributor: Any = SimpleNamespace(rest=lambda *, resting: self.rests.append(resting))
        node: Any = SimpleNamespace(events=SimpleNamespace(emit=self.told.append))
        self.resting, self.step = Standby(node, contributor), 4

    async def take(self, *durations_s: float, rest: bool) -> None:
        """Take steps, after each of which the plan asks for this."""
        for duration_s in durations_s:
            self.step += 1
            self.resting.watch(self.step, self.step - 1 if self.step > 5 else -1)
            await asyncio.sleep(duration_s)
            self.resting.end()
            self.resting.ask(self.step, rest=rest)

    @property
    def vain(self) -> int:
        """How often it gave up."""
        return sum(isinstance(event, PlanRestedInVain) for event in self.told)


@virtually
async def test_the_usual_step_is_one_that_was_computed_in_from_begin_to_end() -> None:
    peer = Sleeper()
    await peer.take(3.0, rest=False)
    assert peer.resting.usual_s == UNKNOWN_STEP_S, "of the first step it has not seen the beginning"
    await peer.take(100.0, 90.0, rest=False)
    await peer.take(110.0, rest=True)
    assert peer.resting.usual_s == 95.0
    await peer.take(20.0, 30.0, rest=True)
    assert peer.resting.usual_s == 100.0, "the step whose plan first asks for rest counts"
    await peer.take(25.0, rest=False)
    peer.step += 1
    peer.resting.watch(peer.step, peer.step - 1)
    assert peer.resting.usual_s == 100.0
    assert (peer.rests[-1], peer.vain) == (False, 0)


@virtually
async def test_a_step_that_takes_far_longer_ends_the_rest_for_longer_each_time() -> None:
    peer = Sleeper()
    await peer.take(1.0, 10.0, 10.0, rest=False)
    await peer.take(10.0, rest=True)
    await peer.take(39.0, rest=True)
    assert (peer.rests[-1], peer.vain) == (True, 0)
    await peer.take(50.0, rest=True)
    assert (peer.rests[-1], peer.vain) == (False, 1), "and whatever the plan asks"
    assert peer.resting.usual_s == 10.0
    await peer.take(*[10.0] * int(UNWILLING_S / 10.0), rest=True)
    assert (peer.rests[-1], peer.vain) == (True, 1)
    await peer.take(1000.0, rest=True)
    assert (peer.rests[-1], peer.vain) == (False, 2)
    await peer.take(*[10.0] * 20, rest=True)
    assert (peer.rests[-1], peer.vain) == (False, 2), "1,160 seconds later: it is twice as long"
    await peer.take(*[10.0] * 5, rest=True)
    assert (peer.rests[-1], peer.vain) == (True, 2)


@virtually
async def test_several_steps_that_take_clearly_longer_end_it_too() -> None:
    peer = Sleeper()
    await peer.take(1.0, 10.0, 10.0, rest=False)
    await peer.take(10.0, rest=True)
    await peer.take(12.0, 12.0, 30.0, 13.0, 14.0, 13.0, rest=True)
    assert peer.vain == 0
    await peer.take(*[17.0] * 6, rest=True)
    assert (peer.rests[-1], peer.vain) == (False, 1)


@virtually
async def test_whoever_is_released_or_leaves_is_not_watched() -> None:
    peer = Sleeper()
    await peer.take(1.0, 10.0, rest=False)
    await peer.take(10.0, rest=True)
    peer.resting.watch(peer.step + 1, peer.step)
    await asyncio.sleep(5.0)
    peer.resting.break_off(peer.step + 1)
    assert peer.rests[-1] is False
    await asyncio.sleep(1e5)
    peer.resting.ask(peer.step + 1, rest=True)
    peer.resting.watch(peer.step + 2, peer.step + 1)
    assert peer.resting.usual_s == 10.0, "neither rested nor computed in"
    peer.resting.end()
    await asyncio.sleep(1e5)
    assert peer.vain == 0


@virtually
async def test_however_often_it_was_in_vain_it_is_tried_again_within_a_day() -> None:
    peer = Sleeper()
    await peer.take(1.0, 10.0, 10.0, 10.0, rest=False)
    for _ in range(30):
        await asyncio.sleep(LONGEST_UNWILLING_S)
        await peer.take(10.0, 1000.0, rest=True)
    assert peer.vain == 30
