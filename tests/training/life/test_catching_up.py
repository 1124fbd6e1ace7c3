"""When a member takes its state for another than that of the others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from minga.averaging.matchmaking.attempt import OutOfSyncError
from minga.core.errors import NoStateError, RemoteError, UnreachableError
from minga.core.events.training import StateAwaited
from minga.core.refusal_code import RefusalCode
from minga.training.life.catching_up import LONGEST_WAIT_S, SYNC_PAUSE_S, CatchingUp, StateWait
from minga.training.lineage import Lineage, Standing
from minga.training.transfer.download import BrokenOffError, OvertakenError, OvertakenMidwayError
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


NOTHING = UnreachableError("no state of step 9 or later here")


@pytest.mark.parametrize(
    ("error", "gives_up"),
    [
        (BrokenOffError("the connection ended"), False),
        (OvertakenError("has another state than the one wanted"), True),
        (OvertakenMidwayError("has another state than the one wanted"), False),
        (OutOfSyncError("the swarm went on", code=RefusalCode.BEHIND, round=9), False),
        (NOTHING, True),
    ],
)
def test_a_newcomer_on_a_slow_line_does_not_give_up_while_parts_of_the_state_come(
    error: RemoteError, gives_up: bool
) -> None:
    """The half hour in which nobody gave anything went on during downloads that took longer, and failed in the end."""

    async def main() -> None:
        events: Any = SimpleNamespace(emit=lambda event: None)
        node: Any = SimpleNamespace(events=events)
        founding: Any = SimpleNamespace(run=SimpleNamespace(organiser="organiser"), genesis=None, told_step=0)
        unused: Any = None
        catching_up = CatchingUp(unused, unused, unused, events, lambda _: False, StateWait(node, founding))
        catching_up.discards_state = True
        founding.look_again = functools.partial(asyncio.sleep, 0.0)
        await catching_up.note_failure(9, NOTHING)
        await asyncio.sleep(LONGEST_WAIT_S)
        with pytest.raises(NoStateError) if gives_up else contextlib.nullcontext():
            await catching_up.note_failure(9, error)
            await catching_up.note_failure(9, NOTHING)
        await asyncio.sleep(LONGEST_WAIT_S)
        with pytest.raises(NoStateError):
            await catching_up.note_failure(9, NOTHING)

    virtually(main, limit_s=3.0 * LONGEST_WAIT_S)()


def catching_up_at(own: Standing, newest: Standing) -> CatchingUp:
    """That of a peer which stands at `own` among others at `newest`."""
    view: Any = SimpleNamespace(newest=lambda: newest, standing=lambda _: own, lineage=Lineage("f" * 32))
    wait: Any = SimpleNamespace(organiser=None, end=lambda: None)
    unused: Any = None
    return CatchingUp(unused, view, unused, unused, lambda _: False, wait)


@virtually
async def test_a_step_is_not_over_because_a_history_that_gives_way_is_past_it() -> None:
    """The only peer that can be dialled came back from a checkpoint, and went on alone past its clients' step."""
    clients, alone = Standing(False, 27, 0, 27, ""), Standing(False, 20, 1, 28, "a" * 64)
    catching_up = catching_up_at(clients, alone)
    catching_up.require(28)
    assert catching_up.to_fetch(27) is None
    late = catching_up_at(clients, Standing(False, 26, 0, 26, ""))  # the board lags behind what was refused
    late.require(28)
    wanted = late.to_fetch(27)
    assert wanted is not None
    assert wanted.minimum_step == 28


@virtually
async def test_who_was_refused_by_one_that_gives_way_asks_again_after_a_pause() -> None:
    begun_s = asyncio.get_running_loop().time()
    catching_up = catching_up_at(Standing(False, 27, 0, 27, ""), Standing(False, 20, 1, 28, "a" * 64))
    for _ in range(10):
        catching_up.require()
        assert catching_up.to_fetch(27) is None
        await catching_up.go_without()
        assert not catching_up.needs_state
    assert asyncio.get_running_loop().time() - begun_s >= 10 * SYNC_PAUSE_S - 1e-6
