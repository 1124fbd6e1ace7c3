"""Pictures of `benchmarks.strategies`: held-out loss against virtual time, and against the bytes of a home."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks._strategy_figures import GIGA, Timeline
from benchmarks._strategy_tasks import TASKS
from minga.core import png

INCHES: Final = (12.0, 4.0)


def write_plots(runs: Sequence[Timeline], folder: Path) -> list[Path]:
    """One picture a task, `strategies-TASK.png`, with a row for each kappa; the paths."""
    written = []
    for task in dict.fromkeys(run.cell.task for run in runs):
        ours = [run for run in runs if run.cell.task == task]
        kappas = sorted({run.kappa for run in ours})
        figure = png.blank(INCHES[0], INCHES[1] * len(kappas))
        rows = figure.subplots(len(kappas), 2, squeeze=False, sharey=True)
        for kappa, axes in zip(kappas, rows, strict=True):
            _draw(axes, [run for run in ours if run.kappa == kappa], f"kappa {kappa:g}")
        rows[0][1].legend(fontsize="small")
        figure.suptitle(f"{task}: held-out loss, seconds and bytes of {TASKS[task].stands_for}")
        written.append(folder / f"strategies-{task}.png")
        png.write(figure, written[-1])
    return written


def _draw(axes: Any, runs: Sequence[Timeline], title: str) -> None:
    by_time, by_bytes = axes
    for run in runs:
        by_time.plot(*_points(run.curve([each / 3600 for each in run.seconds])), label=run.cell.method.name)
        moved = [(fmean(up) + fmean(down)) / GIGA for up, down in zip(run.up, run.down, strict=True)]
        by_bytes.plot(*_points(run.curve(moved)), label=run.cell.method.name)
    by_time.set(xlabel="hours", ylabel=f"loss, {title}", xscale="log")
    by_bytes.set(xlabel="gigabytes of a home, up and down", xscale="log")


def _points(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The curve after its beginning, as two lists."""
    return [x for x, _ in curve[1:]], [y for _, y in curve[1:]]
