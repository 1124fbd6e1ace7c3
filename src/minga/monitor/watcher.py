"""Watches a run through one peer: status on demand, and the history of what changed between two looks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from minga.core.events.averaging import PlanResting
from minga.core.events.bus import Event
from minga.core.events.network import MemberLost
from minga.monitor.history import History
from minga.monitor.last_problem import LastTrouble
from minga.monitor.live_rates import LiveRates, live_rates
from minga.monitor.losses import LossMeter
from minga.monitor.plan_status import PlanWatch
from minga.monitor.status import RunStatus, read_status
from minga.network.interface import PeerId
from minga.training.peer import Peer
from minga.training.record_kinds import Metrics, Progress


class Watcher:
    """Call `look` once or twice a second from any one thread; each look adds to `history` what is new.

    `from_start`: this peer saw the run begin, so that first totals count; see `LossMeter`.
    """

    def __init__(self, peer: Peer, history: History, *, from_start: bool = False) -> None:
        self.history = history
        self._peer, self._losses = peer, LossMeter(from_start=from_start)
        self._members: set[PeerId] = set()
        self._lost: set[str] = set()
        self._resting = False
        self._trouble, self._plan = LastTrouble(), PlanWatch()
        peer.subscribe(self._on_event)
        peer.subscribe(self._trouble.on_event)

    def look(self) -> RunStatus:
        """The present status. Raises `StorageError` if the history cannot be written."""
        live, time_s, status, members, sample = self._peer.on_loop(self._read)
        if status.mode != "byzantine":
            status = replace(status, plan=self._plan.at(time_s, live))
        return self._note(time_s, status, members, sample)

    # ---- inner workings

    def _on_event(self, event: Event) -> None:
        if isinstance(event.data, MemberLost):
            self._lost.add(event.data.peer)
        elif isinstance(event.data, PlanResting):
            self._resting = event.data.resting

    def _read(self) -> tuple[LiveRates, float, RunStatus, set[PeerId], dict[str, object] | None]:
        session = self._peer.session
        records = {item.owner: item.payload for item in session.board.items(Metrics)}
        sample = self._losses.update(records)
        status = read_status(session.board, session.node, self._peer.spec, self._losses)
        trouble = self._trouble.at(asyncio.get_running_loop().time())
        founders = None if session.founding is None else session.founding.waiting
        status = replace(status, founders=founders, trouble=trouble, resting=self._resting)
        members = {item.owner for item in session.board.items(Progress)}
        fields: dict[str, object] | None = None
        if sample is not None:
            fields = {"step": sample.step, "loss": round(sample.loss, 5), "samples": sample.samples}
        return live_rates(session.board), session.node.network.wall_time(), status, members, fields

    def _note(
        self, time_s: float, status: RunStatus, members: set[PeerId], sample: dict[str, object] | None
    ) -> RunStatus:
        for peer in sorted(members - self._members):
            self.history.add(time_s, "joined", peer=peer)
            self._lost.discard(peer)
        for peer in sorted(self._members - members):
            self.history.add(time_s, "lost" if peer in self._lost else "left", peer=peer)
            self._lost.discard(peer)
        self._members = members
        if sample is not None:
            self.history.add(
                time_s,
                "step",
                **sample,
                total_samples=status.total_samples,
                samples_per_second=round(status.samples_per_second, 2),
                members=status.members,
            )
        return status
