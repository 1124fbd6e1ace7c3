"""What became of each step of a simulation, worked out from the entries of its log alone.

A trainer's time from one applied step to the next is divided into four phases. While a micro-batch is under way it
*computes*. Otherwise it *waits* before the round begins, *communicates* while the round runs, and *applies* the result
from then on. With the delayed strategy computing goes on while the round runs; only what is left counts for the latter.

What *bound* a step is the phase that took longest on average. If that is communication, it is the direction of the
line that was busy for the largest share of the round, provided that it was so for `BUSY` of it; otherwise latency, slow
paths and relays, slow others and the like, called "round trips or paths".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from minga.core.events.averaging import (
    GroupLeaderLost,
    GroupMinority,
    PlanRefused,
    PlanRestedInVain,
    RoundAborted,
    RoundBegun,
    RoundMemberLost,
    RoundReduced,
    RoundRepaired,
    RoundSenderDropped,
    RoundWorkTakenOver,
)
from minga.core.events.network import PeerCutOff, PeerOffence
from minga.core.events.security import SecureBanned, SecureMemberAway, SecureStepTaken
from minga.core.events.split import (
    SplitBatchDropped,
    SplitBatchGivenUp,
    SplitBatchRefused,
    SplitRetried,
    SplitSuspicious,
)
from minga.core.events.training import (
    MemberCutOff,
    MemberDiverged,
    MemberFailed,
    MemberOutOfSync,
    StateDonorDropped,
    StepApplied,
    SyncFailed,
    SyncFinished,
)
from minga.simulation.event_log import Entry
from minga.simulation.split.tally import BatchTally

PHASES: Final = ("compute", "wait", "communicate", "apply")
BUSY: Final = 0.5

INCIDENTS: Final = (
    RoundAborted.kind,
    RoundMemberLost.kind,
    RoundSenderDropped.kind,
    RoundWorkTakenOver.kind,
    RoundRepaired.kind,
    GroupLeaderLost.kind,
    GroupMinority.kind,
    MemberCutOff.kind,
    MemberOutOfSync.kind,
    MemberDiverged.kind,
    MemberFailed.kind,
    SecureMemberAway.kind,
    SyncFinished.kind,
    SyncFailed.kind,
    PlanRefused.kind,
    PlanRestedInVain.kind,
    StateDonorDropped.kind,
    PeerOffence.kind,
    PeerCutOff.kind,
    SplitBatchDropped.kind,
    SplitBatchGivenUp.kind,
    SplitBatchRefused.kind,
    SplitRetried.kind,
    SplitSuspicious.kind,
    "peer.gave_up",
    "run.set_back",
    "order.failed",
)
"""Kinds of entries that tell that something went wrong, or was put right."""


@dataclass
class StepRecord:
    """One global step. Times are in virtual seconds; `phases_s` holds sums over the `measured` members.

    Where the model is cut, a step is a batch of `client`, which the server applied.
    """

    number: int
    client: str = ""
    applied_s: float = math.inf
    took_s: float = math.nan
    rounds: dict[str, str] = field(default_factory=dict)
    """Leaders by round; more than one if a round was given up, or the swarm was split."""
    reduced: set[str] = field(default_factory=set)
    members: int = 0
    samples: int = 0
    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    measured: int = 0
    round_s: float = 0.0
    busiest: tuple[float, str, str] = (0.0, "", "")
    """Seconds for which a line was busy, its peer, and the direction."""
    alive: int = 0
    current: int = 0
    contributors: int = 0
    newcomers: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    predicted_s: float | None = None
    loss: float | None = None
    sent_bytes: int = 0
    """What all peers together have sent since the simulation began, until a member applied this step."""
    incidents: list[Entry] = field(default_factory=list)

    @property
    def leader(self) -> str:
        """Who led the round that was finished, or else the last one."""
        finished = [leader for number, leader in self.rounds.items() if number in self.reduced]
        return (finished or list(self.rounds.values()) or [""])[-1]

    @property
    def mean_phases_s(self) -> dict[str, float]:
        """Seconds of each phase, averaged over the members that were there for the whole step."""
        return {phase: seconds / max(1, self.measured) for phase, seconds in self.phases_s.items()}

    @property
    def bound_by(self) -> str:
        """What it waited for longest; see the module."""
        phases = self.mean_phases_s
        longest = max(PHASES, key=lambda phase: phases[phase])
        if longest != "communicate":
            return longest
        seconds, peer, direction = self.busiest
        return f"{direction} of {peer}" if peer and seconds >= BUSY * self.round_s else "round trips or paths"


@dataclass(frozen=True)
class BanRecord:
    """A member was banned, during the step of this number."""

    step: int
    reason: str
    time_s: float


@dataclass
class PeerRecord:
    """One peer: its line (bytes per second), to what a fault slows it, and what it did in all its sessions."""

    up: float | None = None
    down: float | None = None
    slowed_to: float = math.inf
    computes: bool = True
    since_s: float | None = None
    here_s: float = 0.0
    computed_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class _Mark:
    """Where a peer stands in a step: virtual time, and seconds computed so far."""

    time_s: float
    computed_s: float


class Timeline:
    """Takes in entries one by one, in order. Another thread may look at it meanwhile."""

    def __init__(self) -> None:
        self.steps: dict[int, StepRecord] = {}
        """Every step for which a round was begun, by its number."""
        self.peers: dict[str, PeerRecord] = {}
        self.counts: dict[str, int] = {}
        """How often each kind of incident happened, faults among them."""
        self.alive: list[tuple[float, int]] = [(0.0, 0)]
        """Virtual time, and how many were there from then on."""
        self.attacks: dict[str, tuple[str, int]] = {}
        """How each attacker of a byzantine run attacks, and how many steps it takes honestly at first."""
        self.bans: dict[str, BanRecord] = {}
        """Whom honest members banned."""
        self.orders: Counter[str] = Counter()
        """How often the organisers did what."""
        self.batches = BatchTally()
        """What became of each batch, where the model is cut."""
        self.now_s = 0.0
        self.last_step = 0
        """The highest step that anybody applied."""
        self._marks: dict[str, dict[str, _Mark]] = {}
        self._handlers: dict[str, Callable[[str, Entry], None]] = {
            "peer.arrived": self._arrived,
            "peer.left": self._left,
            "peer.stayed": self._add_up,
            SyncFinished.kind: self._synced,
            RoundBegun.kind: self._begun,
            RoundReduced.kind: self._reduced,
            SecureStepTaken.kind: self._agreed,
            SecureBanned.kind: self._banned,
            "attack": self._planned,
            "fault": self._struck,
            "order": self._ordered,
            StepApplied.kind: self._applied,
            "step": self._told,
            "batch.applied": self._batch_applied,
            "batch.answered": lambda _, entry: self.batches.take_answered(entry),
            "batch.given_up": lambda _, entry: self.batches.take_given_up(entry),
        }

    def finished(self) -> list[StepRecord]:
        """Steps that were applied, in order."""
        return [step for _, step in sorted(self.steps.items()) if step.applied_s < math.inf]

    def step_under_way(self) -> StepRecord:
        """The one to which an incident of this moment belongs."""
        return self._step(self.last_step + 1)

    def add(self, entry: Entry) -> None:
        """Take in one entry."""
        self.now_s = entry["t"]
        kind, peer = entry["kind"], str(entry.get("peer", ""))
        if handle := self._handlers.get(kind):
            handle(peer, entry)
        if kind in INCIDENTS or kind == "fault":
            self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in INCIDENTS or kind in ("fault", "order", "peer.arrived", "peer.left"):
            self.step_under_way().incidents.append(entry)

    # ---- entries

    def _ordered(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        self.orders[entry["order"]] += 1

    def _arrived(self, peer: str, entry: Entry) -> None:
        record = self.peers.setdefault(peer, PeerRecord())
        record.up, record.down = entry.get("up"), entry.get("down")
        record.computes, record.since_s = bool(entry.get("computes", True)), self.now_s
        self._count_alive(1)

    def _left(self, peer: str, entry: Entry) -> None:
        self._add_up(peer, entry)
        self._marks.pop(peer, None)
        self._count_alive(-1)

    def _add_up(self, peer: str, entry: Entry) -> None:
        record = self.peers.setdefault(peer, PeerRecord())
        record.here_s += 0.0 if record.since_s is None else self.now_s - record.since_s
        record.since_s = None
        record.computed_s += entry["computed_s"]
        record.sent_bytes += entry["sent"]
        record.received_bytes += entry["received"]

    def _synced(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        self._marks.pop(peer, None)  # it was not there for the whole step

    def _begun(self, peer: str, entry: Entry) -> None:
        step = self._step(entry["step"] + 1)
        if entry["round"] not in step.rounds:
            step.rounds[entry["round"]] = entry["leader"]
            step.members, step.samples, step.predicted_s = entry["members"], 0, entry["predicted_s"]
            step.busiest = (0.0, "", "")
        step.samples += entry["samples"]
        self._mark(peer, "begun", entry)

    def _reduced(self, peer: str, entry: Entry) -> None:
        step = self._step(entry["step"] + 1)
        step.reduced.add(entry["round"])
        step.round_s = max(step.round_s, entry["seconds"])
        record = self.peers.get(peer, PeerRecord())
        for direction, rate, size in (
            ("upload", record.up, entry["bytes_sent"]),
            ("download", record.down, entry["bytes_received"]),
        ):
            carried = min(rate or math.inf, record.slowed_to)
            if carried < math.inf:
                step.busiest = max(step.busiest, (size / carried, peer, direction))
        self._mark(peer, "reduced", entry)

    def _agreed(self, peer: str, entry: Entry) -> None:
        """A member is through a step of a byzantine run, in which it communicated whenever it did not compute."""
        step = self._step(entry["step"])
        step.members = entry["members"]
        marks = self._marks.get(peer, {})
        if "applied" in marks:
            marks["begun"] = marks["applied"]
            self._mark(peer, "reduced", entry)

    def _planned(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        self.attacks.update(dict.fromkeys(entry["peers"], (entry["behaviour"], entry["from_step"])))

    def _struck(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        if entry["action"] == "slow_link":
            rate = math.inf if entry["ended"] else entry["bytes_per_s"]
            self.peers.setdefault(entry["peers"][0], PeerRecord()).slowed_to = rate

    def _banned(self, peer: str, entry: Entry) -> None:
        """The first honest member says so; the others will say the same."""
        if peer not in self.attacks and entry["other"] not in self.bans:
            self.bans[entry["other"]] = BanRecord(entry["step"] + 1, entry["reason"], self.now_s)
            self._step(entry["step"] + 1).incidents.append(entry)

    def _applied(self, peer: str, entry: Entry) -> None:
        number = entry["step"]
        step = self._step(number)
        if step.applied_s == math.inf:
            step.applied_s, self.last_step = self.now_s, max(self.last_step, number)
            step.samples = step.samples if step.rounds else entry["batch"]
            before = self.steps.get(number - 1)
            step.took_s = self.now_s - (before.applied_s if before is not None else 0.0)
        marks = self._marks.get(peer, {})
        now = _Mark(self.now_s, entry["computed_s"])
        record = self.peers.get(peer)
        if record is not None and record.computes and {"applied", "begun", "reduced"} <= marks.keys():
            self._divide(step, [marks["applied"], marks["begun"], marks["reduced"], now])
        self._marks[peer] = {"applied": now}

    def _told(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        step = self._step(entry["step"])
        step.alive, step.current, step.contributors = entry["alive"], entry["current"], entry["contributors"]
        step.newcomers, step.missing, step.sent_bytes = entry["newcomers"], entry["missing"], entry["sent"]
        step.loss = entry.get("loss")

    def _batch_applied(self, peer: str, entry: Entry) -> None:  # noqa: ARG002
        self.batches.take_applied(entry)
        number = entry["step"]
        step, before = self._step(number), self.steps.get(number - 1)
        step.applied_s, self.last_step = self.now_s, max(self.last_step, number)
        step.took_s = self.now_s - (before.applied_s if before is not None else 0.0)
        step.client, step.samples, step.loss = entry["other"], entry["samples"], entry.get("loss")
        step.alive = self.alive[-1][1]

    # ---- inner workings

    def _step(self, number: int) -> StepRecord:
        return self.steps.setdefault(number, StepRecord(number))

    def _mark(self, peer: str, name: str, entry: Entry) -> None:
        self._marks.setdefault(peer, {})[name] = _Mark(self.now_s, entry["computed_s"])

    def _count_alive(self, change: int) -> None:
        self.alive.append((self.now_s, self.alive[-1][1] + change))

    @staticmethod
    def _divide(step: StepRecord, marks: list[_Mark]) -> None:
        """Add one member's phases; `marks` are where each of them ends, and before, where the step began."""
        idle = {}
        for phase, before, after in zip(PHASES[1:], marks, marks[1:], strict=False):
            computed_s = after.computed_s - before.computed_s
            step.phases_s["compute"] += computed_s
            idle[phase] = max(0.0, after.time_s - before.time_s - computed_s)
        for phase, seconds in idle.items():
            step.phases_s[phase] += seconds
        step.measured += 1
