"""The count of samples of a run, whoever watches it, and however often that process dies and begins again."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from minga.core.events.bus import EventBus
from minga.core.spec.run_spec import RunSpec
from minga.dashboard.model.run_model import RunModel
from minga.identity.keys.keys import Identity
from minga.monitor.history import FILE_NAME, History, _halves, _lines_of, read_history, thinned
from minga.monitor.watcher import Watcher
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.rpc.run_clock import RunClock
from minga.training.record_kinds import RUN_KINDS, Metrics, Progress
from minga.training.status.run_status import RunStatus

RUN_ID, BATCH = "ab" * 32, 64
TICK = itertools.count()
"""Seconds, of which a board takes only so many records of a peer in each."""


class Trainer:
    """Trains on, whoever watches; what it publishes of itself begins at 0 where it begins again."""

    def __init__(self, step: int) -> None:
        self._theirs = _board(Identity.generate())
        self.peer_id = self._theirs.peer_id
        self.step, self._steps = step, 0

    def show_to(self, board: Board) -> None:
        self._theirs.on_signed.add(lambda record: board.receive(record, record.owner))
        self._theirs.put(AddressInfo("trainer"))
        self.train(0)

    def train(self, steps: int) -> None:
        self.step, self._steps = self.step + steps, self._steps + steps
        self._theirs.put(Progress(self.step, 0, 5.0, "training", target_batch_size=BATCH))
        self._theirs.put(Metrics(self.step, 3.0 * self._steps, (BATCH + 3) * self._steps, self._steps))

    def step_untold(self) -> None:
        """Train so fast that totals are not told after each step."""
        self.step, self._steps = self.step + 1, self._steps + 1
        self._theirs.put(Progress(self.step, 0, 5.0, "training", target_batch_size=BATCH))


def _board(identity: Identity) -> Board:
    return Board(
        identity,
        RUN_ID,
        run_clock=RunClock(lambda: 1.7e9 + next(TICK), lambda: 100.0 + next(TICK)),
        clock=lambda: 100.0 + next(TICK),
        events=EventBus(lambda: 0.0),
        kinds=RUN_KINDS,
    )


class World:
    """A run with a host, which keeps its history in a folder."""

    def __init__(self, folder: Path, batch: dict[str, Any]) -> None:
        self.path, self._spec = folder / FILE_NAME, RunSpec.from_mapping({"name": "x", "training": batch})
        self.trainer: Trainer | None = None
        self.step, self._clock = 0, itertools.count(1000)
        self.boards: list[Board] = []
        self.host: Watcher | None = self._watcher(History(self.path), from_start=True)

    def _watcher(self, history: History, *, from_start: bool = False) -> Watcher:
        """One that hears of the trainer at once."""
        own = Identity.generate()
        board = _board(own)
        network = SimpleNamespace(wall_time=lambda: float(next(self._clock)))
        node: Any = SimpleNamespace(
            peer_id=own.peer_id, run_id=RUN_ID, role="monitor", traffic=lambda: (0, 0), facts=lambda _: None
        )
        node.network = network
        session = SimpleNamespace(board=board, node=node, founding=None, ledger=None, error=None)
        peer: Any = SimpleNamespace(
            spec=self._spec, session=session, on_loop=lambda function: function(), subscribe=lambda _: None
        )
        watcher = Watcher(peer, history, from_start=from_start)
        self.boards.append(board)
        if self.trainer is not None:
            self.trainer.show_to(board)
        return watcher

    def do(self, what: str, steps: int) -> RunStatus | None:
        """One thing that happens, and what the host sees of it."""
        if what == "host dies":
            self.host = None
        elif what == "host resumes" and self.host is None:
            self.host = self._watcher(History(self.path))
        elif what == "trainer restarts" or self.trainer is None:
            earlier, self.trainer = self.trainer, Trainer(self.step)
            for board in self.boards:
                if earlier is not None:
                    board.expel(earlier.peer_id)
                self.trainer.show_to(board)
        if what == "steps" and self.trainer is not None:
            for _ in range(steps):
                self.trainer.train(1)
                for board in self.boards:
                    board.now.tick()
                if self.host is not None:
                    self.host.look()
            self.step = self.trainer.step
        return None if self.host is None else self.host.look()

    def late_dashboard(self) -> tuple[RunModel, RunStatus]:
        """One that is opened now, and asks the host for its history."""
        model, watcher = RunModel(), self._watcher(History(None))
        for line in thinned(_lines_of(*_halves(self.path)), 40):
            model.take(json.loads(line.text))
        if any(model.samples_at_step):
            watcher.know_samples(*model.samples_at_step)
        return model, watcher.look()


WHAT = st.sampled_from(["steps", "steps", "host dies", "host resumes", "trainer restarts"])


@given(st.lists(st.tuples(WHAT, st.integers(1, 9)), max_size=12))
@example([("steps", 5), ("host dies", 1), ("steps", 3), ("host resumes", 1), ("steps", 2), ("host dies", 1)])
def test_samples_are_counted_once_over_resumes_deaths_and_late_dashboards(happens: list[tuple[str, int]]) -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), {"target_batch_size": BATCH})
            for what, steps in happens:
                seen = world.do(what, steps)
                assert seen is None or seen.total_samples == BATCH * world.step, what
            model, late = world.late_dashboard()
            assert late.total_samples == BATCH * max(late.step, model.samples_at_step[0])
            assert model.total_samples == BATCH * model.samples_at_step[0]
            if world.path.exists():
                curve = [each["total_samples"] for each in read_history(world.path) if each["event"] == "step"]
                assert curve == sorted(curve)

    asyncio.run(check())


def test_steps_that_end_between_two_records_of_losses_count_once_over_resumes() -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), {"target_batch_size": BATCH})
            world.do("trainer restarts", 1)
            assert world.trainer is not None
            for _ in range(3):
                world.trainer.train(1)
                world.trainer.step_untold()
                assert world.do("look", 1)
                world.do("host dies", 1)
                seen = world.do("host resumes", 1)
                assert seen is not None
                assert seen.total_samples == BATCH * world.trainer.step
            steps = [entry for entry in read_history(world.path) if entry["event"] == "step"]
            assert [entry["step"] for entry in steps] == [1, 3, 5]  # that of the losses
            assert [entry.get("total_at") for entry in steps] == [2, 4, 6]

    asyncio.run(check())


def test_who_comes_late_and_finds_no_history_counts_no_more_than_the_steps_may_have() -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), {"target_batch_size": "auto", "target_batch_size_min": 32})
            world.do("steps", 10)
            world.do("trainer restarts", 1)
            world.do("steps", 5)
            world.path.unlink()
            assert world.late_dashboard()[1].total_samples == 15 * 32

    asyncio.run(check())


def test_after_a_resume_the_loss_is_that_of_now() -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), {"target_batch_size": BATCH})
            world.do("steps", 4)
            world.do("host dies", 1)
            world.do("host resumes", 1)
            assert world.host is not None
            assert world.host.look().loss is None, "what was told before is the mean of all the time since it began"
            seen = world.do("steps", 1)
            assert seen is not None
            assert seen.loss == 3.0

    asyncio.run(check())


def test_who_begins_to_watch_later_makes_up_no_comings() -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), {"target_batch_size": BATCH})
            world.do("steps", 4)
            world.do("host dies", 1)
            world.do("host resumes", 1)
            world.do("steps", 30)
            world.do("trainer restarts", 1)
            world.do("steps", 1)
            events = [entry["event"] for entry in read_history(world.path)]
            assert [event for event in events if event != "step"] == ["joined", "joined", "left"]

    asyncio.run(check())
