"""What a host, or a volunteer, does with the second that Ctrl-C takes."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.taking_part import session
from minga.cli.taking_part.join import _Joining
from minga.cli.taking_part.session import LastCheckpoint, on_disk
from minga.cli.terminal.context import Context
from minga.keeping.complete_checkpoints import folder_name
from minga.recipes.running.run import RecipeRun
from minga.training.peer import Peer
from minga.training.state.checkpoints import CheckpointStore
from tests.worlds import forked


class World:
    """A command whose run is at a step, and what happens at its Ctrl-C."""

    def __init__(self, step: int, role: str = "auxiliary", verification: str = "none") -> None:
        self.log: list[str] = []
        self.triggered = threading.Event()
        self.ask: Any = None
        security = SimpleNamespace(verification=verification)
        self.peer = SimpleNamespace(role=role, spec=SimpleNamespace(security=security))
        optimizer = SimpleNamespace(save_checkpoint=lambda: self.log.append("saved"))
        self.run = cast(RecipeRun, SimpleNamespace(step=step, optimizer=optimizer))
        interruption = SimpleNamespace(defer=self._defer, trigger=self._trigger)
        self.context = cast(Context, SimpleNamespace(interruption=interruption))
        self.last = LastCheckpoint(cast(Peer, self.peer), self.context)

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
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    world = World(7)
    assert world.ask()
    assert world.triggered.wait(60.0)
    assert world.log == ["interrupted"]


@pytest.mark.parametrize(("role", "verification"), [("monitor", "none"), ("trainer", "byzantine")])
def test_a_host_without_a_state_of_its_own_or_that_owes_gradients_is_left_alone(role: str, verification: str) -> None:
    assert World(7, role, verification).ask is None


def test_the_step_on_disk_is_told_if_there_is_one(tmp_path: Path) -> None:
    assert on_disk(tmp_path) == {}
    (tmp_path / "checkpoints" / folder_name(5, "ab" * 32)).mkdir(parents=True)
    assert on_disk(tmp_path) == {"checkpoint": 5}


@pytest.mark.parametrize("leaves", ["by Ctrl-C", "for a pause"])
def test_a_volunteer_keeps_the_newest_step_too(leaves: str) -> None:
    """It may be the last one that has it: the host may have gone before, and nobody else have come."""
    world = World(7, "trainer")
    volunteer = cast(Any, object.__new__(_Joining))
    volunteer.peer, volunteer.context = world.peer, world.context
    volunteer.options = SimpleNamespace(evaluate=False)
    volunteer._is_over = lambda _: leaves == "for a pause"

    def train(is_over: Callable[[int], bool], _: object) -> None:
        if leaves == "by Ctrl-C":
            world.ask()
        assert is_over(7)

    run = SimpleNamespace(step=7, finished=False, optimizer=world.run.optimizer, train=train)
    with contextlib.suppress(KeyboardInterrupt):
        volunteer._take_part(run, SimpleNamespace(check=lambda: None))
    assert world.log == (["saved", "interrupted"] if leaves == "by Ctrl-C" else ["saved"])


TOLD_TO_END = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
import torch
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from minga.cli.taking_part import session
from minga.cli.terminal import interrupt
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.snapshot import StateSnapshot, TensorEntry, layout_bytes

interrupt.DEADLINE_S = interrupt.PATIENCE_S = session.PATIENCE_S = 30.0
entries = (TensorEntry("model/weight", "float32", (100,)),)
store = CheckpointStore(Path(sys.argv[1]))
run = SimpleNamespace(step=0)

def save():
    store.save(StateSnapshot(run.step, entries, {}, torch.zeros(layout_bytes(entries), dtype=torch.uint8)))

run.optimizer = SimpleNamespace(save_checkpoint=save)
security = SimpleNamespace(verification="none")
peer = SimpleNamespace(role="trainer", spec=SimpleNamespace(security=security))
last = session.LastCheckpoint(peer, SimpleNamespace(interruption=interrupt.Interruption()))
try:
    for run.step in range(1, 10):
        if run.step == 7:
            for name in sys.argv[2:]:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(0.01)
        last.write(run)
except (KeyboardInterrupt, interrupt.Terminated) as error:
    print(type(error).__name__, flush=True)
os._exit(0)  # the watchdog, which has more patience here, would keep nobody waiting either
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")
@pytest.mark.parametrize("names", ["SIGINT", "SIGHUP SIGHUP", "SIGTERM SIGHUP"])
def test_the_checkpoint_of_the_newest_step_is_on_disk_when_a_host_was_told_to_end(tmp_path: Path, names: str) -> None:
    """With real signals and a real disk, and more patience than a host has, so that no busy machine spoils it."""
    done = forked.run("-c", TOLD_TO_END, str(tmp_path), *names.split(), timeout_s=40)
    assert done.stdout.strip() == ("KeyboardInterrupt" if names == "SIGINT" else "Terminated"), done.stderr
    assert CheckpointStore(tmp_path).steps() == [7]
