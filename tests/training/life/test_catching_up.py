"""When a member takes its state for another than that of the others."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from minga.core.errors import RemoteError
from minga.core.events.training import StateAwaited
from minga.training.life.catching_up import LONGEST_WAIT_S, CatchingUp, StateWait
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


def test_a_peer_says_once_that_it_waits_for_a_state_that_others_have_and_do_not_give(
    caplog: pytest.LogCaptureFixture,
) -> None:
    emitted: list[Any] = []

    @virtually
    async def main() -> None:
        unused: Any = SimpleNamespace(clear=lambda: None, is_behind=lambda step: False)
        events: Any = SimpleNamespace(emit=emitted.append)
        node: Any = SimpleNamespace(events=events)
        founding: Any = SimpleNamespace(run=SimpleNamespace(organiser="organiser"))
        catching_up = CatchingUp(unused, unused, unused, events, lambda _: False, StateWait(node, founding))
        for seconds in (LONGEST_WAIT_S + 60, 10):
            for _ in range(int(seconds)):  # as long as others are there that have it: alone it would fork the run
                await catching_up.note_failure(9, RemoteError("no state of step 9 or later here"))
            await catching_up.go_without()

    with caplog.at_level(logging.WARNING, "minga.training"):
        main()
    assert [event.why for event in emitted if isinstance(event, StateAwaited)] == [
        "the state of step 9, which others have, did not come: no state of step 9 or later here"
    ] * 2
    assert len(caplog.records) == 2
