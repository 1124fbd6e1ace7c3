"""A made-up run of any size for the dashboard: looks, losses and events as a host of it would have them."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from minga.averaging.links import Links
from minga.core.events.averaging import RoundBegun, RoundReduced
from minga.core.events.bus import Event, EventBus, EventData
from minga.core.events.training import StepApplied
from minga.core.spec.run_spec import RunSpec
from minga.dashboard.dashboard import Dashboard
from minga.dashboard.settings import DashboardSettings
from minga.identity.keys.keys import Identity
from minga.monitor.history import FILE_NAME, History
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.gossip.records import Record
from minga.network.rpc.run_clock import RunClock
from minga.training.peer import Peer
from minga.training.record_kinds import RUN_KINDS, Progress
from minga.training.status.run_status import LossSample, PeerStatus, PlanStatus, RunStatus
from minga.training.status.status_reader import Look

RUN_ID = "ab" * 32
BATCH = 4096
STEP_S = 5.0
BEGIN_S = 1.7e9
LINK = "minga1" + "a" * 80


def peer_id(number: int) -> str:
    """The id of a made-up peer."""
    return f"{number:064x}"


class Loop:
    """An event loop on a thread, as a peer has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def ask(self, function: Callable[[], Any]) -> Any:
        """Run a function there."""

        async def call() -> Any:
            return function()

        return self.call(call())

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10.0)

    def close(self) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _board_of_three() -> Board:
    """A board as planning reads it: three peers, of which one has a slow line."""

    def make(identity: Identity) -> Board:
        clock = RunClock(lambda: BEGIN_S, lambda: 100.0)
        return Board(identity, RUN_ID, run_clock=clock, clock=lambda: 100.0, events=EventBus(float), kinds=RUN_KINDS)

    board = make(Identity.generate())

    def hear(record: Record) -> None:
        board.receive(record, record.owner)

    for upload in (12_500_000, 12_500_000, 1_250_000):
        theirs = make(Identity.generate())
        theirs.on_signed.add(hear)
        progress = Progress(1, 0, 40.0, "training", vector_bytes=8 << 20)
        for payload in (AddressInfo("trainer"), progress, Links(upload, 4 * upload)):
            theirs.put(payload)
    return board


class MadeUpRun:
    """`peers` trainers; `time_s` (Unix time) is moved on by `advance`. What is said of them goes to the listeners."""

    def __init__(
        self,
        peers: int,
        *,
        directory: Path | None = None,
        seed: int = 1,
        begin_s: float = BEGIN_S,
        admission: str = "open",
        role: str = "auxiliary",
    ) -> None:
        self.count, self.time_s, self.step = peers, begin_s, 0
        self.samples = 0
        self.people: dict[str, str] = {}
        """The names of people who logged in, by peer id."""
        self.syncing: set[int] = set()
        self.gone: set[int] = set()
        self.paused = False
        self._begin_s = begin_s
        self._random = random.Random(seed)
        self._loop = Loop()
        self._bus = EventBus(lambda: self.time_s)
        self.history = History(None if directory is None else directory / FILE_NAME, most_remembered=0)
        self.watcher: Any = SimpleNamespace(history=self.history, listeners=[], know_samples=lambda *_: None)
        self.peer = cast(Peer, self._peer(admission, role))

    def serve(
        self,
        directory: Path | None,
        *,
        keeps: bool = True,
        is_organisers: bool = False,
        port: int = 0,
        **settings: Any,
    ) -> Dashboard:
        """A dashboard of this run, started; port 0 is any."""
        chosen = DashboardSettings(port=port, **settings)
        dashboard = Dashboard(
            self.peer, self.watcher, chosen, directory=directory, keeps=keeps, is_organisers=is_organisers
        )
        dashboard.start()
        return dashboard

    def close(self) -> None:
        """End the loop of the made-up peer."""
        self._loop.close()

    def emit(self, data: EventData) -> None:
        """An event of the peer behind the dashboard."""
        self._loop.ask(lambda: self._bus.emit(data))

    def advance(self, seconds: float) -> Look:
        """Let so much time pass: a step if one is due, losses, a round, a look."""
        self.time_s += seconds
        step = int((self.time_s - self._begin_s) / STEP_S)
        if step > self.step and not self.paused:
            self._take_step(step)
        look = Look(self.time_s, self.status(), None)
        for listener in list(self.watcher.listeners):
            listener(look)
        return look

    def status(self) -> RunStatus:
        """The run at this moment."""
        peers = tuple(self._status_of(number) for number in range(self.count) if number not in self.gone)
        active = [peer for peer in peers if peer.status == "training"]
        shares = {peer.peer_id: 1.0 / len(active) for peer in active}
        return RunStatus(
            name="a made-up run",
            run_id=RUN_ID,
            step=self.step,
            last_step=100_000,
            loss=self._loss(),
            samples_per_second=sum(peer.samples_per_second for peer in active),
            samples=BATCH // 3,
            target_batch_size=BATCH,
            total_samples=self.samples,
            members=len(active),
            averages=len(active) >= 2,
            digests_agree=True,
            peers=peers,
            plan=PlanStatus(shares, False, ("upload", peer_id(0), None), 1.2, 8 << 20),
            paused=self.paused,
        )

    # ---- inner workings

    def _take_step(self, step: int) -> None:
        self.step, sample = step, LossSample(step, self._loss() + self._random.uniform(-0.03, 0.03), BATCH)
        self.samples += BATCH
        self.history.add(
            self.time_s,
            "step",
            step=step,
            loss=sample.loss,
            samples=BATCH,
            total_samples=self.samples,
            members=self.count,
        )
        waited_s, seconds = self._random.uniform(2.5, 3.5), self._random.uniform(0.8, 1.6)
        begun = RoundBegun(
            step=step,
            round="r",
            leader=peer_id(0),
            members=self.count,
            samples=10,
            waited_s=waited_s,
            parts=self.count,
            sites=0,
            predicted_s=1.0,
        )
        self.emit(begun)
        self.emit(RoundReduced(step=step, round="r", seconds=seconds, lost=0, bytes_sent=1, bytes_received=1))
        self.emit(StepApplied(step=step, samples=10, members=self.count, batch=BATCH))

    def _loss(self) -> float:
        return 2.0 + 4.0 * math.exp(-self.step / 300.0)

    def _status_of(self, number: int) -> PeerStatus:
        speed = 40.0 * (1 + number % 7) / 4
        syncing = number in self.syncing
        passed_s = self.time_s - self._begin_s
        return PeerStatus(
            peer_id=peer_id(number),
            role="client" if number % 5 == 4 else "trainer",
            status="syncing" if syncing else "training",
            step=self.step,
            samples=10,
            samples_per_second=0.0 if syncing else speed,
            total_samples=round(speed * passed_s),
            bytes_sent=round(1e6 * passed_s),
            bytes_received=round(1.1e6 * passed_s),
            path="relayed" if number % 10 == 9 else "direct",
            round_trip_s=0.02 + number % 13 / 100,
            age_s=0.4,
            is_self=number == 0,
        )

    def _members(self) -> dict[str, Any]:
        return {peer: SimpleNamespace(access=SimpleNamespace(name=name)) for peer, name in self.people.items()}

    def _peer(self, admission: str, role: str) -> Any:
        settings = {"training": {"target_batch_size": BATCH}, "security": {"admission": admission}}
        spec = RunSpec.from_mapping({"name": "a made-up run", **settings})
        node = SimpleNamespace(connected=list)
        organiser = peer_id(0)

        class Link:
            entries: tuple[Any, ...] = ()

            def __init__(self) -> None:
                self.run_id, self.organiser = RUN_ID, organiser

            def __str__(self) -> str:
                return LINK

        return SimpleNamespace(
            spec=spec,
            peer_id=organiser,
            role=role,
            run_id=RUN_ID,
            link=Link(),
            session=SimpleNamespace(
                node=node,
                admission=SimpleNamespace(members=self._members),
                board=self._loop.ask(_board_of_three),
                ledger=None,
            ),
            on_loop=self._loop.ask,
            call=self._loop.call,
            subscribe=self._subscribe,
            receipts=dict,
        )

    def _subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        return self._bus.subscribe(listener)
