"""Writes the entries beside the losses: the swarm's size and speed, rounds, misses, sync times, findings, orders.

    {"t": …, "event": "swarm", "alive": 12, "training": 10, "syncing": 1, "relayed": 2, "samples_per_second": 310.5,
     "sent": 1.2e6, "received": 1.3e6, "by_peer": {"PEER": 80.1, …}, "others": 12.0}
    {"t": …, "event": "round", "step": 7, "compute_s": …, "wait_s": …, "communicate_s": …, "apply_s": …, "members": 10,
     "wanted": 11, "lost": 0}
    {"t": …, "event": "missed" | "suspected" | "accused" | "banned" | "admitted", "peer": …, "step": …, "why": "…"}
    {"t": …, "event": "synced", "peer": …, "seconds": 4.2}
    {"t": …, "event": "amended" | "paused" | "resumed" | "regrouped", "step": …, "changes": "…"}

`sent` and `received` are bytes per second of all peers together, `wanted` the peers that could have taken part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from minga.core.events.averaging import (
    GroupLeaderLost,
    GroupMinority,
    PlanResting,
    RoundAborted,
    RoundBegun,
    RoundMemberLost,
    RoundReduced,
    RoundSenderDropped,
)
from minga.core.events.bus import Event
from minga.core.events.network import PeerCutOff, PeerOffence
from minga.core.events.security import SecureAdmitted, SecureBanned, SecureDropped, SecureMemberAway
from minga.core.events.training import (
    AccessEnded,
    MemberOutOfSync,
    RunRegrouped,
    StateDonorDropped,
    StepApplied,
    TrainingTooSlow,
)
from minga.dashboard.model.documents import peer_counts
from minga.dashboard.model.series import fastest
from minga.monitor.history import History
from minga.training.record_kinds import IN_STEP, is_another_process
from minga.training.status.run_status import RunStatus
from minga.training.status.status_reader import Look

PERIOD_S: Final = 5.0
LONGEST_APPLY_S: Final = 3600.0
YOUNG_S, LATER_PERIOD_S = 3600.0, 30.0
"""Once it has recorded for an hour, the swarm's size and speed are written less often: the file tells of weeks."""


Incident = tuple[str, dict[str, Any]]
"""Name and fields of a history entry."""


class RunRecorder:
    """Adds to `history` what one peer sees."""

    def __init__(self, history: History, own_id: str) -> None:
        self._history, self._own_id = history, own_id
        self._clock, self._syncs, self._orders = RoundClock(), SyncTimes(), OrderWatch()
        self._status: RunStatus | None = None
        self._traffic: tuple[float, dict[str, tuple[float, int, int]]] | None = None
        self._begun_s: float | None = None
        self._written_s = 0.0

    def on_look(self, look: Look) -> None:
        """Take in one look at the run."""
        self._status = look.status
        self._begun_s = look.time_s if self._begun_s is None else self._begun_s
        for peer, seconds in self._syncs.take(look.time_s, look.status):
            self._history.add(look.time_s, "synced", peer=peer, seconds=round(seconds, 2))
        for event, fields in self._orders.take(look.status):
            self._history.add(look.time_s, event, **fields)
        period_s = PERIOD_S if look.time_s - self._begun_s < YOUNG_S else LATER_PERIOD_S
        if not 0.0 <= look.time_s - self._written_s < period_s:
            self._written_s = look.time_s
            self._add_swarm(look.time_s, look.status)

    def on_event(self, time_s: float, event: Event) -> None:
        """Take in one event of the peer, which happened at Unix time `time_s`."""
        if (times := self._clock.on_event(event)) is not None:
            self._add_round(time_s, times)
        elif (incident := incident_of(event, self._own_id)) is not None:
            self._history.add(time_s, incident[0], **incident[1])

    def _add_swarm(self, time_s: float, status: RunStatus) -> None:
        counts = peer_counts(status)
        by_peer, others = fastest({p.peer_id: p.samples_per_second for p in status.peers if p.is_in_step})
        if status.split is not None:  # its server counts the samples of all clients together
            by_peer, others = {}, round(status.samples_per_second, 2)
        sent, received = self._bytes_per_second(time_s, status)
        self._history.add(
            time_s,
            "swarm",
            **{kind: counts[kind] for kind in ("alive", "training", "syncing", "relayed")},
            samples_per_second=round(status.samples_per_second, 2),
            sent=sent,
            received=received,
            by_peer=by_peer,
            others=others,
        )

    def _bytes_per_second(self, time_s: float, status: RunStatus) -> tuple[int | None, int | None]:
        """Sent and received by all peers since the swarm was written last; None the first time."""
        now = {
            peer.peer_id: (peer.since, peer.bytes_sent, peer.bytes_received)
            for peer in status.peers
            if peer.bytes_sent is not None and peer.bytes_received is not None
        }
        before, self._traffic = self._traffic, (time_s, now)
        if before is None or time_s <= before[0]:
            return None, None
        pairs = [(now[peer], old) for peer, old in before[1].items() if peer in now]
        pairs = [(new, (0.0, 0, 0) if is_another_process(new[0], old[0]) else old) for new, old in pairs]
        sent, received = (sum(max(0, new[way] - old[way]) for new, old in pairs) for way in (1, 2))
        return round(sent / (time_s - before[0])), round(received / (time_s - before[0]))

    def _add_round(self, time_s: float, times: RoundTimes) -> None:
        status = self._status
        computing_s = times.computing_s(status.samples_per_second if status is not None else 0.0)
        wanted = times.members if status is None else sum(peer.is_in_step for peer in status.peers)
        self._history.add(
            time_s,
            "round",
            step=times.step,
            compute_s=round(computing_s, 3),
            wait_s=round(times.forming_s - computing_s, 3),
            communicate_s=round(times.communicate_s, 3),
            apply_s=round(times.apply_s, 3),
            members=times.members - times.lost,
            wanted=max(wanted, times.members),
            lost=times.lost,
        )


class OrderWatch:
    """Which orders of the organisers came into force, as far as looks show it: a monitor hears no more.

    What is in force at the first look is taken as known.
    """

    def __init__(self) -> None:
        self._due: set[int] | None = None
        self._paused = False

    def take(self, status: RunStatus) -> list[tuple[str, dict[str, Any]]]:
        """The history entries (name and fields) of what changed since the look before."""
        due = {each.number for each in status.amendments if each.due or each.overruled}
        before, self._due = self._due, due
        paused, self._paused = self._paused, status.paused
        if before is None:
            return []
        found: list[tuple[str, dict[str, Any]]] = [
            ("amended", {"step": each.from_step, "changes": each.changes})
            for each in status.amendments
            if each.number in due - before and not each.changes.startswith("paused = ")
        ]
        if status.paused != paused:
            found.append(("paused" if status.paused else "resumed", {"step": status.step}))
        return found


class SyncTimes:
    """How long newcomers fetched the state: a peer that was syncing at one look and trains at the next has it."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def take(self, time_s: float, status: RunStatus) -> list[tuple[str, float]]:
        """The peers that finished since the look before, and for how many seconds each was seen syncing."""
        finished = []
        present = {peer.peer_id: peer.status for peer in status.peers if peer.status is not None}
        for peer, since_s in list(self._since.items()):
            if present.get(peer) != "syncing":
                del self._since[peer]
                if present.get(peer) in IN_STEP:
                    finished.append((peer, max(0.0, time_s - since_s)))
        for peer, what in present.items():
            if what == "syncing":
                self._since.setdefault(peer, time_s)
        return finished


@dataclass(frozen=True)
class RoundTimes:
    """The phases of one round, in seconds.

    The group took `forming_s` to form, in which peers computed and waited. `members` took part, of whom `lost` dropped
    out.
    """

    step: int
    forming_s: float
    communicate_s: float
    apply_s: float
    members: int
    lost: int
    batch: int

    def computing_s(self, samples_per_second: float) -> float:
        """How much of the forming was computing the batch, at this speed of the swarm; the rest was waiting."""
        if samples_per_second <= 0.0:
            return self.forming_s
        return min(self.forming_s, self.batch / samples_per_second)


class RoundClock:
    """How long the phases of rounds took at one peer, whose events it takes in their order."""

    def __init__(self) -> None:
        self._begun: RoundBegun | None = None
        self._reduced: tuple[float, RoundReduced] | None = None

    def on_event(self, event: Event) -> RoundTimes | None:
        """The times of a round, once its step is applied."""
        data = event.data
        if isinstance(data, RoundBegun):
            self._begun, self._reduced = data, None
        elif isinstance(data, RoundReduced):
            self._reduced = event.time, data
        elif isinstance(data, RoundAborted):
            self._begun = self._reduced = None
        elif isinstance(data, StepApplied):
            return self._finish(event.time, data)
        return None

    def _finish(self, now_s: float, applied: StepApplied) -> RoundTimes | None:
        begun, reduced = self._begun, self._reduced
        self._begun = self._reduced = None
        if begun is None or reduced is None or begun.step != reduced[1].step:
            return None
        return RoundTimes(
            step=applied.step,
            forming_s=max(0.0, begun.waited_s),
            communicate_s=max(0.0, reduced[1].seconds),
            apply_s=min(LONGEST_APPLY_S, max(0.0, now_s - reduced[0])),
            members=begun.members,
            lost=reduced[1].lost,
            batch=applied.batch,
        )


# ---- why a peer missed a round, or is mistrusted


def incident_of(event: Event, own_id: str) -> Incident | None:
    """The history entry (name and fields) that an event makes; None for all other events.

    `own_id` is the peer whose events these are: some are about itself and name no peer.
    """
    if isinstance(event.data, RunRegrouped):
        return "regrouped", {"step": event.data.step}
    return _missed(event, own_id) or _mistrusted(event)


def _missed(event: Event, own_id: str) -> Incident | None:
    match event.data:
        case RoundMemberLost(step=step, peer=peer, why=why):
            return "missed", {"step": step, "peer": peer, "why": f"lost in the round: {why}"}
        case RoundSenderDropped(step=step, peer=peer, why=why):
            return "missed", {"step": step, "peer": peer, "why": f"its part came too late: {why}"}
        case PlanResting(step=step, resting=True):
            return "missed", {"step": step, "peer": own_id, "why": "on standby: its upload costs more than it brings"}
        case MemberOutOfSync(step=step, why=why):
            return "missed", {"step": step, "peer": own_id, "why": f"out of sync: {why}"}
        case TrainingTooSlow(step=step, why=why):
            return "missed", {"step": step, "peer": own_id, "why": f"too slow: {why}"}
        case RoundAborted(step=step, why=why):
            return "missed", {"step": step, "peer": None, "why": f"round aborted for all: {why}"}
        case GroupMinority(step=step, view=view):
            return "missed", {"step": step, "peer": None, "why": f"no majority: {view} members of the last round seen"}
    return None


def _mistrusted(event: Event) -> Incident | None:
    match event.data:
        case GroupLeaderLost(step=step, peer=peer, why=why):
            return "suspected", {"step": step, "peer": peer, "why": f"as leader: {why}"}
        case SecureMemberAway(step=step, peer=peer):
            return "suspected", {"step": step, "peer": peer, "why": "away for too long; removed without blame"}
        case PeerOffence(peer=peer, what=what):
            return "accused", {"peer": peer, "why": f"broke the protocol: {what}"}
        case PeerCutOff(peer=peer, seconds=seconds):
            return "accused", {"peer": peer, "why": f"broke the protocol often; cut off for {seconds:.0f} s"}
        case StateDonorDropped(peer=peer, reason=reason, lied=True):
            return "accused", {"peer": peer, "why": f"served a false state: {reason}"}
        case SecureDropped(step=step, peer=peer):
            return "accused", {"step": step, "peer": peer, "why": "did not pass probation"}
        case SecureBanned(step=step, peer=peer, why=why):
            return "banned", {"step": step, "peer": peer, "why": why}
        case AccessEnded(peer=peer, why=why):
            return "banned", {"peer": peer, "why": why}
        case SecureAdmitted(step=step, peer=peer):
            return "admitted", {"step": step, "peer": peer, "why": "passed probation"}
    return None
