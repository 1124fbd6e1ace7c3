"""When a member takes its state for another than that of the others."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from minga.training.life.catching_up import CatchingUp
from tests.worlds.swarm_tools import virtually


def test_a_program_is_warned_when_its_state_differs_for_the_second_time(caplog: pytest.LogCaptureFixture) -> None:
    emitted: list[Any] = []

    @virtually
    async def main() -> None:
        differs = False
        states: Any = SimpleNamespace(is_diverged=lambda others, finished: differs, clear=lambda: None)
        view: Any = SimpleNamespace(settled=dict, alike=set, is_behind=lambda step: False)
        events: Any = SimpleNamespace(emit=emitted.append)
        synchroniser: Any = None
        wait: Any = SimpleNamespace(end=lambda: None)
        catching_up = CatchingUp(synchroniser, view, states, events, lambda _: False, wait)
        catching_up.needs_state = False
        for step in (10, 20, 30):
            differs = True
            assert catching_up.is_due(step)
            assert catching_up.is_due(step)
            differs = False
            catching_up.finish(step)
            assert not catching_up.is_due(step)
            assert bool(caplog.records) is (step > 10), "one divergence may come of a lost link"

    with caplog.at_level(logging.WARNING, "minga.training"):
        main()
    assert [event.step for event in emitted] == [10, 20, 30]
    assert len(caplog.records) == 1
