"""What came of a simulation, in figures and in pictures."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from minga.core.png import blank, write
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

    `wall_s` is real time, everything else virtual. `timeline` has what happened, step by step; `agreement` is told
    where the organisers act. `pending` are faults of the script whose event never came, or for which nobody was there.
    """

    scenario: Scenario
    timeline: Timeline
    ended_by: str
    virtual_s: float
    wall_s: float
    log_digest: str
    entries: int
    agreement: Agreement | None = None
    pending: tuple[str, ...] = ()

    @property
    def steps(self) -> list[StepRecord]:
        """The steps that were applied, in order."""
        return self.timeline.finished()

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
        trainers = [peer for peer in self.timeline.peers.values() if peer.computes]
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
        return min((from_step for _, from_step in self.timeline.attacks.values()), default=None)

    def losses(self) -> list[tuple[float, float]]:
        """Virtual time and held-out loss after each step."""
        return [(step.applied_s, step.loss) for step in self.steps if step.loss is not None]

    def summary(self) -> dict[str, Any]:
        """All of it as JSON values."""
        traffic = [(peer.sent_bytes, peer.received_bytes) for peer in self.timeline.peers.values()]
        losses = self.losses()
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "ended_by": self.ended_by,
            "peers": len(self.timeline.peers),
            "most_alive": max(alive for _, alive in self.timeline.alive),
            "steps": self.timeline.last_step,
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
            "incidents": dict(sorted(self.timeline.counts.items())),
            "pending_faults": list(self.pending),
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
            "orders": dict(self.timeline.orders) or None,
            "split": self.timeline.batches.summary() if self.timeline.batches else None,
            "agreement": None if self.agreement is None else asdict(self.agreement),
            "entries": self.entries,
            "log_digest": self.log_digest,
        }

    def _attack(self) -> dict[str, Any] | None:
        """What came of the attackers; None if there are neither attackers nor bans."""
        attacks, bans = self.timeline.attacks, self.timeline.bans
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


# ---- Pictures of a simulation: loss, attacks, the anatomy of its steps, who was there, and what was sent.


COLOURS: Final = {"compute": "tab:green", "wait": "lightgray", "communicate": "tab:blue", "apply": "tab:orange"}
SIZE_INCHES: Final = (9.0, 4.5)


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw what there is to draw into PNG files in `folder`. Raises `StorageError` if the disk refuses."""
    figures: dict[str, Callable[[Any, Outcome], None]] = {
        "rounds": _anatomy,
        "peers": _peers,
        "traffic": _traffic,
    }
    if outcome.losses():
        figures = {"loss": _loss, **figures}
        if outcome.onset is not None:
            figures = {"attack": _attack, **figures}
    return [_save(outcome, drawing, folder / f"{name}.png") for name, drawing in figures.items()]


def _save(outcome: Outcome, drawing: Callable[[Any, Outcome], None], path: Path) -> Path:
    figure = blank(*SIZE_INCHES)
    axes = figure.subplots()
    drawing(axes, outcome)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    name = f"{outcome.scenario.name}, seed {outcome.scenario.seed}"
    figure.suptitle(name.replace("$", r"\$"))
    write(figure, path)
    return path


def _loss(axes: Any, outcome: Outcome) -> None:
    unit_s, unit = _unit(outcome)
    losses = outcome.losses()
    axes.plot([time / unit_s for time, _ in losses], [loss for _, loss in losses], label="held out")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="loss")


def _attack(axes: Any, outcome: Outcome) -> None:
    losses = {step.number: step.loss for step in outcome.steps if step.loss is not None}
    bans = [ban.step for ban in outcome.timeline.bans.values() if ban.step in losses]
    words = ", ".join(sorted({behaviour for behaviour, _ in outcome.timeline.attacks.values()}))
    (line,) = axes.plot(list(losses), list(losses.values()), label=f"loss under attack ({words})")
    if bans:
        axes.plot(bans, [losses[step] for step in bans], "v", color=line.get_color(), label=f"bans ({len(bans)})")
    axes.axvline(outcome.onset or 0, color="gray", linestyle="--", label="onset")
    axes.set(xlabel="step", ylabel="held-out loss")
    members = axes.twinx()
    members.step([step.number for step in outcome.steps], [step.members for step in outcome.steps], where="mid",
                 color="tab:gray", alpha=0.6)  # fmt: skip
    members.set(ylabel="members (gray)", ylim=(0, None))


def _anatomy(axes: Any, outcome: Outcome) -> None:
    steps = [step for step in outcome.steps if step.measured]
    numbers = [step.number for step in steps]
    bottom = [0.0] * len(steps)
    for phase in PHASES:
        heights = [step.mean_phases_s[phase] for step in steps]
        axes.bar(numbers, heights, bottom=bottom, width=1.0, color=COLOURS[phase], label=phase)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="step", ylabel="seconds of a member's time")


def _peers(axes: Any, outcome: Outcome) -> None:
    unit_s, unit = _unit(outcome)
    alive = [*outcome.timeline.alive, (outcome.virtual_s, outcome.timeline.alive[-1][1])]
    axes.step([time / unit_s for time, _ in alive], [count for _, count in alive], where="post", label="there")
    steps = outcome.steps
    times = [step.applied_s / unit_s for step in steps]
    axes.plot(times, [step.current for step in steps], ".", label="trainers up to date")
    axes.plot(times, [step.contributors for step in steps], "x", label="contributors")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="peers", ylim=(0, None))


def _traffic(axes: Any, outcome: Outcome) -> None:
    """Mean rate at which all peers together sent during each step, from samples of their counters."""
    unit_s, unit = _unit(outcome)
    sampled = [(0.0, 0), *((step.applied_s, step.sent_bytes) for step in outcome.steps)]
    times, rates = [0.0], [0.0]
    for (before_s, before), (after_s, after) in itertools.pairwise(sampled):
        if after_s > before_s:
            times.append(after_s / unit_s)
            rates.append((after - before) / (after_s - before_s) / 1e6)
    axes.step(times, rates, where="pre", label="all traffic")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="sent by all peers (MB/s)", ylim=(0, None))


def _unit(outcome: Outcome) -> tuple[float, str]:
    return (60.0, "minutes") if outcome.virtual_s < 7200 else (3600.0, "hours")
