"""Reads the status of a run on demand, from the board and from the events of the peer that looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from minga.access.standing_orders import StandingOrders
from minga.averaging.strategy_choice import round_batch_range
from minga.core.errors import RejectedError
from minga.core.events.averaging import PlanResting
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.network.gossip.board import Board, Change
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.record_kinds import Metrics, Progress
from minga.training.status.last_problem import LastTrouble
from minga.training.status.run_status import (
    AmendmentStatus,
    LiveRates,
    LossMeter,
    LossSample,
    PlanWatch,
    RunStatus,
    SampleCount,
    SplitMeter,
    live_rates,
    read_status,
    target_batch_size,
    with_split,
)

T = TypeVar("T")


class SessionView(Protocol):
    """What a status is read from: parts of a `Session`."""

    @property
    def board(self) -> Board:
        """The records of all peers."""

    @property
    def node(self) -> Node:
        """This peer's connections."""

    @property
    def error(self) -> RejectedError | None:
        """Why this peer may not take part any more, once that is so."""

    @property
    def founding(self) -> Any:
        """The founding of the run, None once it has members; its `waiting` says how many are ready and wanted."""

    @property
    def ledger(self) -> AccessLedger | None:
        """The organisers' orders; None while the run is not known."""


class Watched(Protocol):
    """A peer, as far as a reader needs it."""

    spec: RunSpec

    @property
    def session(self) -> SessionView:
        """Its inner parts."""

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Hear of every event."""

    def on_loop(self, function: Callable[[], T]) -> T:
        """Run a short function on the background thread."""


class Look(NamedTuple):
    """One look at a run, at Unix time `time_s`; `sample` is the loss since the look before, None without news."""

    time_s: float
    status: RunStatus
    sample: LossSample | None


class StatusReader:
    """Call `look` from any one thread, but not from the event loop's.

    `from_start`: this peer saw the run begin, so that first totals count; see `LossMeter`. Else `samples` may be told
    how many there were before.
    """

    def __init__(self, peer: Watched, *, from_start: bool = False) -> None:
        self._peer, self._losses = peer, LossMeter(from_start=from_start)
        self.samples = SampleCount()
        if from_start:
            self.samples.know(0, 0)
        self._resting = False
        self._step = 0
        self._watched: Board | None = None
        self._trouble, self._plan, self._split = LastTrouble(), PlanWatch(), SplitMeter()
        peer.subscribe(self._on_event)

    def look(self) -> Look:
        """The present status. Raises `ClosedError` after the peer was closed, and what ended this peer's part."""
        look, live = self._peer.on_loop(self._read)
        if look.status.is_verified:
            return look
        return look._replace(status=replace(look.status, plan=self._plan.at(look.time_s, live)))

    # ---- inner workings

    def _on_event(self, event: Event) -> None:
        self._trouble.on_event(event)
        if isinstance(event.data, PlanResting):
            self._resting = event.data.resting

    def _listen_to(self, board: Board) -> None:
        """Hear of steps between two looks, too: after the last one members leave sooner than another look comes."""
        if board is self._watched:
            return
        self._watched = board

        def note(peer: PeerId, _: Change) -> None:
            if (progress := board.get(peer, Progress)) is not None:
                self._step = max(self._step, progress.step)

        board.observe(note)

    def _read(self) -> tuple[Look, LiveRates]:
        session = self._peer.session
        if session.error is not None:
            raise session.error
        self._listen_to(session.board)
        sample = self._losses.update({item.owner: item.payload for item in session.board.items(Metrics)})
        usual = read_status(session.board, session.node, self._peer.spec, self._losses)
        self._step = usual.step or self._step  # once all members have left, none tells of it any more
        usual = replace(usual, step=self._step)
        if self._peer.spec.split.is_on:
            split = self._split.look(session.board, asyncio.get_running_loop().time())
            usual = with_split(usual, split)
        if session.ledger is not None:
            usual = _as_amended(usual, session, self._peer.spec, session.ledger)
        status = replace(
            usual,
            total_samples=self._total_samples(usual),
            founders=None if session.founding is None or self._step else session.founding.waiting,
            trouble=self._trouble.at(asyncio.get_running_loop().time()),
            resting=self._resting,
        )
        return Look(session.node.network.wall_time(), status, sample), live_rates(session.board)

    def _total_samples(self, status: RunStatus) -> int:
        if status.split is not None:
            return status.split.samples
        bounds = round_batch_range(self._peer.spec.at(status.step))
        self.samples.take(status.step, status.target_batch_size, bounds=bounds, seen=self._losses.total_samples)
        return self.samples.total


def _as_amended(status: RunStatus, session: SessionView, spec: RunSpec, ledger: AccessLedger) -> RunStatus:
    """The status by the settings that are due at the run's step."""
    orders = StandingOrders(spec, ledger)
    due = orders.due(status.step)
    amended = orders.spec(due, status.step)
    return replace(
        status,
        last_step=amended.training.stop_after_steps,
        target_batch_size=target_batch_size(session.board, amended),
        phase=amended.training.phase_at(status.step),
        paused=(is_paused := orders.is_paused(status.step)),
        samples_per_second=0.0 if is_paused else status.samples_per_second,
        amendments=tuple(
            AmendmentStatus(
                each.number,
                each.from_step,
                ", ".join(f"{key} = {text}" for key, text in each.changes),
                each.id in due,
                each.from_step <= status.step and each.id not in due,
            )
            for each in ledger.amendments
        ),
    )
