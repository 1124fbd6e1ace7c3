"""What came of a simulation, in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from minga.simulation.scenario.scenario import Scenario
from minga.simulation.timeline import PHASES, StepRecord, Timeline

DIGITS: Final = 4


@dataclass(frozen=True)
class Agreement:
    """What `peers` at the last step have in the end: how many different `states`, whether all of them know the same
    orders, and whether each step was taken exactly once.
    """

    peers: int
    states: int
    has_same_orders: bool
    has_all_steps: bool


@dataclass(frozen=True)
class Outcome:
    """A simulation that ended because of `ended_by` ("steps", "time", "loss", "stopped" by the organisers, "interrupt"
    or "nobody is left").

    `wall_s` is real time, everything else virtual. `ledger` has what happened, step by step; `agreement` is told where
    the organisers act.
    """

    scenario: Scenario
    ledger: Timeline
    ended_by: str
    virtual_s: float
    wall_s: float
    log_digest: str
    entries: int
    agreement: Agreement | None = None

    @property
    def steps(self) -> list[StepRecord]:
        """The steps that were applied, in order."""
        return self.ledger.finished()

    @property
    def participation(self) -> float | None:
        """Trainers that contributed to a round, of those that were alive and up to date, over all steps."""
        current = sum(step.current for step in self.steps)
        return sum(step.contributors for step in self.steps) / current if current else None

    @property
    def least_participation(self) -> float | None:
        """The same of the step in which it was least."""
        return min((step.contributors / step.current for step in self.steps if step.current), default=None)

    @property
    def steps_per_hour(self) -> float | None:
        """Steps per hour from the first applied step on, since the first has to wait for peers that connect."""
        times = [step.applied_s for step in self.steps]
        return 3600.0 * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None

    @property
    def utilisation(self) -> float | None:
        """Share of the trainers' time in the run in which they computed."""
        trainers = [peer for peer in self.ledger.peers.values() if peer.computes]
        here_s = sum(peer.here_s for peer in trainers)
        return sum(peer.computed_s for peer in trainers) / here_s if here_s else None

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase of a step, averaged over members and steps."""
        measured = sum(step.measured for step in self.steps)
        return {phase: sum(step.phases_s[phase] for step in self.steps) / max(1, measured) for phase in PHASES}

    @property
    def bound_by(self) -> dict[str, int]:
        """How many steps waited longest for what; the first one, which nobody measures whole, left out."""
        counted = Counter(step.bound_by for step in self.steps if step.measured)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    @property
    def split_steps(self) -> int:
        """Steps of which two groups finished a round each."""
        return sum(len(step.reduced) > 1 for step in self.steps)

    @property
    def longest_gap_s(self) -> float | None:
        """The longest time between two steps."""
        return max((step.took_s for step in self.steps[1:]), default=None)

    @property
    def onset(self) -> int | None:
        """How many steps the first attackers take honestly; None if there are none."""
        return min((from_step for _, from_step in self.ledger.attacks.values()), default=None)

    def losses(self) -> list[tuple[float, float]]:
        """Virtual time and held-out loss after each step."""
        return [(step.applied_s, step.loss) for step in self.steps if step.loss is not None]

    def summary(self) -> dict[str, Any]:
        """All of it as JSON values."""
        traffic = [(peer.sent_bytes, peer.received_bytes) for peer in self.ledger.peers.values()]
        losses = self.losses()
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "ended_by": self.ended_by,
            "peers": len(self.ledger.peers),
            "most_alive": max(alive for _, alive in self.ledger.alive),
            "steps": self.ledger.last_step,
            "wall_s": round(self.wall_s, 2),
            "virtual_s": round(self.virtual_s, 3),
            "steps_per_hour": _rounded(self.steps_per_hour),
            "participation": _rounded(self.participation),
            "least_participation": _rounded(self.least_participation),
            "utilisation": _rounded(self.utilisation),
            "phases_s": {phase: _rounded(seconds) for phase, seconds in self.phases_s.items()},
            "round_s": _rounded(_mean([step.round_s for step in self.steps])),
            "samples_per_step": _rounded(_mean([step.samples for step in self.steps])),
            "bound_by": self.bound_by,
            "longest_gap_s": _rounded(self.longest_gap_s),
            "split_steps": self.split_steps,
            "incidents": dict(sorted(self.ledger.counts.items())),
            "bytes_sent_per_peer": {
                "mean": _whole(_mean([up for up, _ in traffic])),
                "most": max(up for up, _ in traffic),
            }
            if traffic
            else None,
            "bytes_received_per_peer": {
                "mean": _whole(_mean([down for _, down in traffic])),
                "most": max(down for _, down in traffic),
            }
            if traffic
            else None,
            "loss": losses[-1][1] if losses else None,
            "members": self.steps[-1].members if self.steps else None,
            "attack": self._attack(),
            "orders": dict(self.ledger.orders) or None,
            "split": self.ledger.batches.summary() if self.ledger.batches else None,
            "agreement": None if self.agreement is None else asdict(self.agreement),
            "entries": self.entries,
            "log_digest": self.log_digest,
        }

    def _attack(self) -> dict[str, Any] | None:
        """What came of the attackers; None if there are neither attackers nor bans."""
        attacks, bans = self.ledger.attacks, self.ledger.bans
        if not attacks and not bans:
            return None
        return {
            "behaviours": sorted({behaviour for behaviour, _ in attacks.values()}),
            "from_step": self.onset,
            "attackers": len(attacks),
            "attackers_banned": len(bans.keys() & attacks.keys()),
            "honest_banned": len(bans.keys() - attacks.keys()),
            "bans": {
                name: {"step": ban.step, "reason": ban.reason, "t": round(ban.time_s, 3)} for name, ban in bans.items()
            },
        }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
