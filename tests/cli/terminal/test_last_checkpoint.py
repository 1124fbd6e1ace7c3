"""What a host does with the second that Ctrl-C takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.terminal import last_checkpoint
from minga.cli.terminal.context import Context
from minga.cli.terminal.last_checkpoint import LastCheckpoint
from minga.recipes.running.run import RecipeRun
from minga.training.peer import Peer


class World:
    """A host whose run is at a step, and what happens at its Ctrl-C."""

    def __init__(self, step: int, role: str = "auxiliary", verification: str = "none") -> None:
        self.log: list[str] = []
        self.triggered = threading.Event()
        self.ask: Any = None
        security = SimpleNamespace(verification=verification)
        self.peer = SimpleNamespace(role=role, spec=SimpleNamespace(security=security), checkpoint_step=lambda: None)
        optimizer = SimpleNamespace(save_checkpoint=lambda: self.log.append("saved"))
        self.run = cast(RecipeRun, SimpleNamespace(step=step, optimizer=optimizer))
        context = SimpleNamespace(interruption=SimpleNamespace(defer=self._defer, trigger=self._trigger))
        self.last = LastCheckpoint(cast(Peer, self.peer), cast(Context, context))

    def _defer(self, ask: Any, *, ends: bool) -> None:
        assert ends
        self.ask = ask

    def _trigger(self) -> None:
        self.log.append("interrupted")
        self.triggered.set()


@pytest.mark.parametrize(("step", "log"), [(7, ["saved", "interrupted"]), (0, ["interrupted"])])
def test_the_newest_step_is_kept_when_the_model_is_at_rest(step: int, log: list[str]) -> None:
    world = World(step)
    world.last.write(world.run)
    assert world.log == []
    assert world.ask()
    assert world.last.is_wanted
    with pytest.raises(KeyboardInterrupt):
        world.last.write(world.run)
    assert world.log == log


def test_a_model_that_is_not_at_rest_in_time_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_checkpoint, "PATIENCE_S", 0.0)
    world = World(7)
    assert world.ask()
    assert world.triggered.wait(60.0)
    assert world.log == ["interrupted"]


@pytest.mark.parametrize(("role", "verification"), [("monitor", "none"), ("trainer", "byzantine")])
def test_a_host_without_a_state_of_its_own_or_that_owes_gradients_is_left_alone(role: str, verification: str) -> None:
    assert World(7, role, verification).ask is None


def test_the_step_on_disk_is_told_if_there_is_one() -> None:
    world = World(7)
    assert world.last.on_disk() == {}
    world.peer.checkpoint_step = lambda: 5
    assert world.last.on_disk() == {"checkpoint": 5}
