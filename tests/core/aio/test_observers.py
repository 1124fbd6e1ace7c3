"""Control goes by direct calls: what an observer raises reaches the part that tells it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import minga
from minga.core.aio import Observers
from minga.network.rpc.keepalive import PULSE_S, KeepaliveTicker
from tests.network.gossip.test_board import A, World, progress


def test_observers_are_called_in_order_until_they_are_removed() -> None:
    heard: list[str] = []
    observers = Observers[[int]]()
    end = observers.add(lambda number: heard.append(f"first {number}"))
    observers.add(lambda number: heard.append(f"second {number}"))
    observers.tell(1)
    end()
    observers.tell(2)
    assert heard == ["first 1", "second 1", "second 2"]


def test_the_mistake_of_an_observer_is_raised_where_the_change_is_made() -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake in a rule")

    world = World()
    world.board.observe(fail)
    with pytest.raises(ZeroDivisionError, match="a mistake in a rule"):
        world.board.receive(world.record(progress(1), version=1), A)


def test_a_tick_that_fails_is_told_to_the_loop_at_once() -> None:
    class Broken:
        def on_tick(self, tick: int) -> None:
            raise ZeroDivisionError(f"at tick {tick}")

    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        clockwork = KeepaliveTicker()
        clockwork.add(Broken())
        clockwork.start()
        await asyncio.sleep(2 * PULSE_S)
        assert [str(each["exception"]) for each in told] == ["at tick 1"]

    asyncio.run(scenario())


def test_only_displays_logs_and_scripts_hear_events() -> None:
    source = Path(minga.__file__).parent
    hearers = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if ".subscribe(" in path.read_text(encoding="utf-8")
    }
    assert hearers == {"cli", "dashboard", "monitor", "simulation", "training"}
    in_training = [path for path in (source / "training").rglob("*.py") if ".subscribe(" in path.read_text("utf-8")]
    # The public door for programs, and the status that is shown.
    assert sorted(path.relative_to(source).as_posix() for path in in_training) == [
        "training/peer.py",
        "training/status/status_reader.py",
    ]
