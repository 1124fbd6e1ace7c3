"""From records of runs to figures: time and bytes to a loss, gaps, and how evenly the peers took part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from benchmarks._strategy_clock import NO_COST, Clock, CodecCost
from benchmarks._strategy_run import Cell, Record
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS

TARGET_SHARES: Final = (0.6, 0.8, 0.95)
"""A target is the loss that the reference has after this share of its samples."""
FEWEST_ROUNDS: Final = 30
GIGA: Final = 1e9


@dataclass
class Timeline:
    """One run by the clock of one kappa. Entry r is what holds after r rounds; bytes are encoded ones, of the model
    that the small one stands for, and each list of them has one entry for each home.
    """

    cell: Cell
    record: Record
    kappa: float
    bare: bool = False
    """Without fixed costs and codecs, as the formulas are."""
    seconds: list[float] = field(default_factory=lambda: [0.0])
    samples: list[float] = field(default_factory=lambda: [0.0])

    def __post_init__(self) -> None:
        sent = [0.0] * len(self.cell.speeds)
        got = [0.0] * len(self.cell.speeds)
        self.up, self.down, self.auxiliary = [list(sent)], [list(got)], [0.0]
        for each in self.record["rounds"]:
            self.seconds.append(self._after(each))
            self.samples.append(self.samples[-1] + sum(each["samples"]))
            for home, size in enumerate(each["up"]):
                sent[home] += self.scale * size
                got[home] += self.scale * each["down"]
            if "joined" in each:
                newcomer, size = each["joined"]
                got[newcomer] += self.scale * size
                sent[(newcomer + 1) % len(sent)] += self.scale * size
            self.up.append(list(sent))
            self.down.append(list(got))
            served = self.scale * (sum(each["up"]) + len(sent) * each["down"])
            self.auxiliary.append(self.auxiliary[-1] + served)

    @cached_property
    def clock(self) -> Clock:
        """At this kappa."""
        bare = self.bare or self.cell.bare
        numel, cost = self.record["numel"], NO_COST if bare else CodecCost(*self.record["cost"])
        clock = Clock(self.cell.speeds, self.kappa, numel, TASKS[self.cell.task].parameters, cost)
        return replace(clock, fixed_s=0.0) if bare else clock

    @property
    def scale(self) -> float:
        """How many times larger the model is that this one stands for."""
        return self.clock.parameters / self.clock.numel

    def _after(self, each: Mapping[str, Any]) -> float:
        if "at_s" in each:
            return float(each["at_s"])
        busy_s = float(each["batches"]) * self.clock.batch_s
        return self.seconds[-1] + busy_s + self.clock.round_s(each["up"], each["down"])

    @property
    def relative_time(self) -> float:
        """Seconds a sample, relative to computing alone."""
        return float(self.seconds[-1] / (self.samples[-1] / GLOBAL_BATCH * self.clock.batch_s))

    # ---- the curve, against something that grows with the rounds

    def curve(self, series: Sequence[float]) -> list[tuple[float, float]]:
        """Pairs of an entry of `series` and the held-out loss after as many rounds."""
        return [(series[each["round"]], each["loss"]) for each in self.record["curve"]]

    def loss_at(self, x: float, series: Sequence[float]) -> float:
        """The loss where `series` has come to x, between two evaluations linearly; the last one beyond the end."""
        points = self.curve(series)
        for (left, before), (right, after) in pairwise(points):
            if x <= right:
                return before + (after - before) * (x - left) / (right - left) if right > left else after
        return points[-1][1]

    def first(self, loss: float, series: Sequence[float]) -> float | None:
        """Where `series` is when the loss first comes down to `loss`; None if it never does."""
        for (left, before), (right, after) in pairwise(self.curve(series)):
            if after <= loss:
                fall = before - after
                return right if fall <= 0 else left + (right - left) * max(0.0, min(1.0, (before - loss) / fall))
        return None

    @property
    def final_loss(self) -> float:
        """At the end."""
        return float(self.record["curve"][-1]["loss"])


def figures(run: Timeline, reference: Timeline) -> dict[str, Any]:
    """The figures of one run beside the reference of the same seed and kappa; see `benchmarks.strategies`."""
    end_s = min(run.seconds[-1], reference.seconds[-1])
    by_time = run.loss_at(end_s, run.seconds) / reference.loss_at(end_s, reference.seconds) - 1
    targets = {}
    for share in TARGET_SHARES:
        loss = reference.loss_at(share * reference.samples[-1], reference.samples)
        targets[f"{100 * share:.0f}%"] = _until(run, reference, loss)
    return {
        "final_loss": round(run.final_loss, 4),
        "gap_percent": round(100 * (_at_equal_samples(run, reference) - 1), 3),
        "gap_percent_at_equal_time": round(100 * by_time, 3),
        "relative_time": round(run.relative_time, 4),
        "hours": round(run.seconds[-1] / 3600, 3),
        "targets": targets,
        **participation(run),
    }


def _at_equal_samples(run: Timeline, reference: Timeline) -> float:
    samples = min(run.samples[-1], reference.samples[-1])
    return run.loss_at(samples, run.samples) / reference.loss_at(samples, reference.samples)


def _until(run: Timeline, reference: Timeline, loss: float) -> dict[str, Any]:
    """What it takes to come to `loss`; all but that None if it is never reached."""
    found: dict[str, Any] = {"loss": round(loss, 4)}
    seconds, theirs = run.first(loss, run.seconds), reference.first(loss, reference.seconds)
    found["hours"] = None if seconds is None else round(seconds / 3600, 4)
    found["share_of_reference"] = round(seconds / theirs, 4) if seconds is not None and theirs else None
    samples = run.first(loss, run.samples)
    found["samples"] = None if samples is None else round(samples)
    for way, sent in {"up": run.up, "down": run.down}.items():
        for what, of in (("max", max), ("mean", fmean)):
            size = run.first(loss, [of(homes) for homes in sent])
            found[f"{way}_gb_{what}"] = None if size is None else round(size / GIGA, 4)
    moved = run.first(loss, run.auxiliary)
    found["auxiliary_gb"] = None if moved is None else round(moved / GIGA, 4)
    return found


def participation(run: Timeline) -> dict[str, Any]:
    """How many peers' worth of samples a mean has, H, and what of the samples counted."""
    rounds = run.record["rounds"]
    weights = [[w for w in each["weights"] if w] for each in rounds]
    effective = fmean(sum(w) ** 2 / sum(x * x for x in w) for w in weights)
    steps = sorted(step for each in rounds for step, w in zip(each["steps"], each["weights"], strict=True) if w)
    computed = sum(sum(each["computed"]) for each in rounds)
    counted = sum(n for each in rounds for n, w in zip(each["samples"], each["weights"], strict=True) if w)
    grown = [sum(each["samples"]) / run.cell.batch for each in rounds]
    return {
        "rounds": len(rounds),
        "too_short": len(rounds) < FEWEST_ROUNDS,
        "n_eff": round(effective, 2),
        "largest_share": round(max(max(w) / sum(w) for w in weights), 3),
        "inner_steps": [steps[0], steps[len(steps) // 2], steps[-1]],
        "counted_share": round(counted / computed, 4),
        "window_growth": round(fmean(grown), 3),
        "skipped_rounds": sum(len(each["weights"]) - len(w) for each, w in zip(rounds, weights, strict=True)),
    }


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several seeds: numbers as [mean, least, most], None where any of them is None."""
    joined: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, Mapping):
            joined[name] = over_seeds(values)
        elif isinstance(first, bool):
            joined[name] = any(values)
        elif isinstance(first, list):
            joined[name] = first
        elif any(value is None for value in values):
            joined[name] = None
        elif len(rows) == 1:
            joined[name] = first
        else:
            joined[name] = [round(each, 4) for each in (fmean(values), min(values), max(values))]
    return joined
