"""From records of runs to a table and a plot: time and bytes to a loss, gaps, and encoded bytes by the formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks._strategy_clock import Clock, CodecCost
from benchmarks._strategy_run import Cell, Record
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, tensors_of
from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.layout import usual_download
from minga.core import png

TARGET_SHARES: Final = (0.6, 0.8, 0.95)
"""A target is the loss that the reference has after this share of its samples."""
FEWEST_ROUNDS: Final = 30
GIGA: Final = 1e9
INCHES: Final = (8.0, 4.0)
BYTES_LIMIT, HEADER_BYTES = 0.01, 64

Row = dict[str, Any]


class Timeline:
    """One run by the clock of one kappa. Entry r of each list is what holds after r rounds; `up` and `down` are encoded
    bytes of a home in the mean, of the model that the small one stands for.
    """

    def __init__(self, cell: Cell, record: Record, kappa: float) -> None:
        self.cell, self.record, self.kappa = cell, record, kappa
        numel, parameters = record["numel"], TASKS[cell.task].parameters
        clock = self.clock = Clock(cell.speeds, kappa, numel, parameters, CodecCost(*record["cost"]))
        self.seconds, self.samples, self.up, self.down = [0.0], [0.0], [0.0], [0.0]
        waited_s = 0.0
        for each in record["rounds"]:
            if "at_s" in each:
                self.seconds.append(waited_s + each["at_s"])
            else:
                waited_s = self.seconds[-1] + each["batches"] * clock.batch_s + clock.round_s(each["up"], each["down"])
                self.seconds.append(waited_s)
            self.samples.append(self.samples[-1] + each["samples"])
            self.up.append(self.up[-1] + parameters / numel * fmean(each["up"]))
            self.down.append(self.down[-1] + parameters / numel * each["down"])

    def curve(self, series: Sequence[float]) -> list[tuple[float, float]]:
        """Pairs of an entry of `series` and the held-out loss after as many rounds."""
        return [(series[each["round"]], each["loss"]) for each in self.record["curve"]]

    def loss_at(self, samples: float) -> float:
        """The loss after so many samples, between two evaluations linearly; the last one beyond the end."""
        points = self.curve(self.samples)
        for (left, before), (right, after) in pairwise(points):
            if samples <= right:
                return before + (after - before) * (samples - left) / (right - left) if right > left else after
        return points[-1][1]

    def first(self, loss: float, series: Sequence[float]) -> float | None:
        """Where `series` is when the loss first comes down to `loss`; None if it never does."""
        for (left, before), (right, after) in pairwise(self.curve(series)):
            if after <= loss:
                fall = before - after
                return right if fall <= 0 else left + (right - left) * max(0.0, min(1.0, (before - loss) / fall))
        return None

    def row(self, reference: Timeline) -> Row:
        """The figures beside the reference of the same seed and kappa; see `benchmarks.strategies`."""
        samples = min(self.samples[-1], reference.samples[-1])
        gap = self.loss_at(samples) / reference.loss_at(samples) - 1
        computing_s = self.samples[-1] / GLOBAL_BATCH * self.clock.batch_s
        rounds = len(self.record["rounds"])
        found: Row = {
            "final_loss": self.record["curve"][-1]["loss"],
            "gap_percent": round(100 * gap, 3),
            "relative_time": round(self.seconds[-1] / computing_s, 4),
            "hours": round(self.seconds[-1] / 3600, 3),
            "rounds": rounds,
            "too_short": rounds < FEWEST_ROUNDS,
        }
        targets = {f"{100 * share:.0f}%": reference.loss_at(share * reference.samples[-1]) for share in TARGET_SHARES}
        return {**found, "targets": {name: self._until(loss, reference) for name, loss in targets.items()}}

    def _until(self, loss: float, reference: Timeline) -> Row:
        """What it takes to come to `loss`; all but that None if it is never reached."""
        seconds, theirs = self.first(loss, self.seconds), reference.first(loss, reference.seconds)
        return {
            "loss": round(loss, 4),
            "hours": _rounded(seconds, 3600),
            "share_of_reference": _rounded(seconds, theirs) if theirs else None,
            "samples": _rounded(self.first(loss, self.samples), 1, 0),
            "up_gb": _rounded(self.first(loss, self.up), GIGA),
            "down_gb": _rounded(self.first(loss, self.down), GIGA),
        }


def _rounded(value: float | None, unit: float, digits: int = 4) -> float | None:
    return None if value is None else round(value / unit, digits)


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> Row:
    """The figures of several seeds: numbers as [mean, least, most], None where any of them is None."""
    joined: Row = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, Mapping):
            joined[name] = over_seeds(values)
        elif isinstance(first, bool):
            joined[name] = any(values)
        elif None in values:
            joined[name] = None
        else:
            joined[name] = [round(each, 6) for each in (fmean(values), min(values), max(values))]
    return joined


def bytes_row(run: Timeline) -> Row | None:
    """Encoded bits an element against the formula, on both ways; None without a formula."""
    method, numel, rounds = run.cell.method, run.record["numel"], run.record["rounds"]
    if method.bits is None:
        return None
    fragments = method.facts.fragments
    rounds = rounds[: max(1, len(rounds) // fragments) * fragments]  # each fragment as often
    sent = [size for each in rounds for size in each["up"] if size]
    row: Row = {"method": method.name, "task": run.cell.task, "ok": True}
    choice = method.choice["codec"]
    travels = (choice, method.choice.get("download_codec") or usual_download(choice) or choice)
    tensors = tensors_of(run.cell.task)
    ways = zip(("up", "down"), (sent, [each["down"] for each in rounds]), method.bits, travels, strict=True)
    for way, sizes, formula, travel in ways:
        bits, least = 8 * fragments * fmean(sizes) / numel, codec(travel).fewest_elements
        small = sum(numel for numel in tensors if numel < least) / sum(tensors)  # these travel as float16
        expected = round(formula + (16.0 - formula) * small, 4)
        row[f"{way}_bits"] = [round(bits, 4), expected]
        row["ok"] &= abs(bits - expected) <= BYTES_LIMIT * expected + 8 * HEADER_BYTES / numel
    return row


def text(rows: Iterable[Row]) -> str:
    """The table for people, by means of the seeds."""
    heads = ("gap %", "s/sample", "80 %: time", "up GB", "down GB")
    lines = [f"{'task':7} {'kappa':>5} {'method':26} " + " ".join(f"{head:>10}" for head in heads)]
    for row in rows:
        target = row["targets"]["80%"]
        shown = [
            row["gap_percent"],
            row["relative_time"],
            *(target[n] for n in ("share_of_reference", "up_gb", "down_gb")),
        ]
        words = " ".join("     never" if each is None else f"{each[0]:10.3f}" for each in shown)
        lines.append(f"{row['task']:7} {row['kappa']:5g} {row['method']:22} x{row['budget']:<3} {words}")
    return "\n".join(lines)


def write_plots(runs: Sequence[Timeline], folder: Path) -> None:
    """`strategies-TASK.png` for each task: held-out loss over virtual hours, a panel for each kappa."""
    for task in dict.fromkeys(run.cell.task for run in runs):
        ours = [run for run in runs if run.cell.task == task]
        kappas = sorted({run.kappa for run in ours})
        figure = png.blank(INCHES[0], INCHES[1] * len(kappas))
        panels = figure.subplots(len(kappas), 1, squeeze=False, sharey=True)[:, 0]
        for kappa, panel in zip(kappas, panels, strict=True):
            for run in ours:
                if run.kappa == kappa:
                    curve = run.curve(run.seconds)[1:]
                    panel.plot([s / 3600 for s, _ in curve], [loss for _, loss in curve], label=run.cell.method.name)
            panel.set(
                xlabel=f"hours of {TASKS[task].stands_for}, kappa {kappa:g}", ylabel="held-out loss", xscale="log"
            )
        panels[-1].legend(fontsize="small")  # where all methods are, also those that one kappa alone has
        png.write(figure, folder / f"strategies-{task}.png")
