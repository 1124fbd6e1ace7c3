"""Writes down what happens in a simulated swarm, as entries of a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from minga.core.events.averaging import PlanResting, RoundBegun, RoundReduced
from minga.core.events.network import PeerNotDialable
from minga.core.events.security import SecureBanned, SecureStepTaken
from minga.core.events.split import SplitClientBegan
from minga.core.events.training import StepApplied
from minga.simulation.event_log import Entry, LogWriter
from minga.simulation.faults.driver import FaultRecord
from minga.simulation.models import held_out_loss
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import LoggedEvent, Swarm, SwarmListener
from minga.simulation.timeline import INCIDENTS, Timeline

KEPT: Final = frozenset(
    {
        *INCIDENTS,
        RoundBegun.kind,
        RoundReduced.kind,
        SecureStepTaken.kind,
        SecureBanned.kind,
        StepApplied.kind,
        PlanResting.kind,
        PeerNotDialable.kind,
        SplitClientBegan.kind,
    }
)
"""Events of peers that become entries; the rest would be many times as much."""

TIMED: Final = (RoundBegun, RoundReduced, SecureStepTaken, StepApplied)
"""Events at which a phase of a step ends."""

MAX_NAMED: Final = 20
LOSS_DIGITS: Final = 4


class Recorder(SwarmListener):
    """Writes down what a swarm tells: entries go to `writer` and into the `timeline`; `on_step` hears of every step,
    `on_error` of what goes wrong in here, such as a full disk.

    An entry is an event of a peer, with the names of peers instead of their ids, or one of these: `attack` (who will,
    and how), `order` and `order.failed` (of the organisers), `peer.arrived`, `peer.left`, `peer.stayed` (at the end),
    `peer.too_small`, `peer.gave_up`, `run.set_back` (nobody was there, and who comes back has not kept all of the
    steps), `fault`, `batch.applied`, `batch.answered` and `batch.given_up` (see `BatchTally`), and `step`, which tells
    who took part in a step when the first peer has applied it.
    """

    def __init__(
        self,
        writer: LogWriter,
        timeline: Timeline,
        on_step: Callable[[int], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.timeline = timeline
        self.swarm: Swarm | None = None
        self._writer, self._on_step, self._on_error = writer, on_step, on_error
        self._names: dict[str, str] = {}
        self._round: dict[str, str] = {}
        self._samples: dict[str, dict[str, int]] = {}
        self._current: dict[str, list[str]] = {}
        self._resting: set[str] = set()
        self._known: set[str] = set()
        """Who was up to date in an earlier step since it came: only before that a peer is excused without samples."""
        self._told = self._gone_sent = 0
        self._is_over = False

    # ---- what the peers tell

    def add(self, logged: LoggedEvent) -> None:
        """Add an entry if the event becomes one."""
        if self._is_over or logged.event.kind not in KEPT:
            return
        try:
            self._add(logged)
        except Exception as error:  # the peer that emits must not suffer, and would hide it
            self._on_error(error)

    def _add(self, logged: LoggedEvent) -> None:
        event = logged.event
        fields: Entry = {name: self._names.get(value, value) if isinstance(value, str) else value
                         for name, value in event.fields.items()}  # fmt: skip
        other = {"other": fields.pop("peer")} if "peer" in fields else {}
        self.note(event.kind, peer=logged.peer, **other, **self._more(logged), **fields)
        if isinstance(event.data, StepApplied):
            self._tell_step(event.data.step, logged.peer)

    def note(self, kind: str, **fields: object) -> None:
        """Add an entry."""
        if not self._is_over:
            entry = {"t": asyncio.get_running_loop().time(), "kind": kind, **fields}
            self.timeline.add(self._writer.add(entry))

    def close(self) -> None:
        """Take nothing in any more: what happens now is only the end of the simulation."""
        self._is_over = True

    # ---- what the simulation tells

    def arrived(self, peer: SimulatedPeer) -> None:
        """A peer joins now."""
        self._names[peer.network.peer_id] = peer.name
        host = peer.network.settings
        self._resting.discard(peer.name)
        self._known.discard(peer.name)
        self.note(
            "peer.arrived",
            peer=peer.name,
            role=peer.session.settings.role,
            computes=peer.settings is not None,
            up=host.up_bytes_per_s,
            down=host.down_bytes_per_s,
        )

    def left(self, peer: SimulatedPeer, how: str) -> None:
        """A peer is gone; `how`: "goodbye", "crash", "killed" (by a fault), "banned" or "error"."""
        totals = _totals(peer)
        self._gone_sent += totals["sent"]
        self.note("peer.left", peer=peer.name, how=how, **totals)

    def stayed(self, peer: SimulatedPeer) -> None:
        """The simulation ends, and the peer is still there."""
        self.note("peer.stayed", peer=peer.name, **_totals(peer))

    def fault(self, record: FaultRecord) -> None:
        """Something was done to peers."""
        fault = record.fault
        self.note(
            "fault",
            what=str(fault),
            action=fault.action,
            peers=list(record.peers),
            bytes_per_s=fault.bytes_per_s,
            ended=record.ended,
        )

    # ---- inner workings

    def _more(self, logged: LoggedEvent) -> Entry:
        """What an entry has beyond its event."""
        peer, data = self._peer(logged.peer), logged.event.data
        if isinstance(data, PlanResting):
            (self._resting.add if data.resting else self._resting.discard)(peer.name)
        if isinstance(data, RoundBegun):
            self._begun(peer.name, data)
        return {"computed_s": peer.computed_s} if isinstance(data, TIMED) else {}

    def _begun(self, peer: str, begun: RoundBegun) -> None:
        if begun.round not in self._current:
            self._current[begun.round] = [each.name for each in self._alive() if self._is_current(each, begun.step)]
            self._samples[begun.round] = {}
        self._round[peer] = begun.round
        self._samples[begun.round][peer] = begun.samples

    def _is_current(self, peer: SimulatedPeer, step: int) -> bool:
        member = peer.session.member
        return (
            peer.settings is not None
            and member is not None
            and member.ready.is_set()
            and member.step == step
            and peer.name not in self._resting
            and not peer.network.state.stalled
        )

    def _tell_step(self, step: int, peer: str) -> None:
        """A step was applied for the first time: say which of the peers that could have taken part did."""
        if step <= self._told:
            return
        self._told = step
        number = self._round.get(peer, "")
        samples, there = self._samples.get(number, {}), self._current.get(number, [])
        newcomers = [name for name in there if not samples.get(name) and name not in self._known]
        current = [name for name in there if name not in newcomers]
        self._known.update(there)
        missing = [name for name in current if not samples.get(name)]
        loss = held_out_loss(self._peer(peer))
        self.note(
            "step",
            step=step,
            alive=len(self._alive()),
            current=len(current),
            contributors=len(current) - len(missing),
            newcomers=newcomers[:MAX_NAMED],
            missing=missing[:MAX_NAMED],
            sent=self._gone_sent + sum(each.session.node.traffic()[0] for each in self._alive()),
            **({} if loss is None else {"loss": round(loss, LOSS_DIGITS)}),
        )
        self._samples.clear()
        self._current.clear()
        self._on_step(step)

    def _alive(self) -> list[SimulatedPeer]:
        return [] if self.swarm is None else self.swarm.alive()

    def _peer(self, name: str) -> SimulatedPeer:
        if self.swarm is None:
            raise RuntimeError("a recorder needs its swarm")
        return self.swarm.peers[name]


def _totals(peer: SimulatedPeer) -> Entry:
    sent, received = peer.session.node.traffic()
    return {"computed_s": peer.computed_s, "sent": sent, "received": received}
