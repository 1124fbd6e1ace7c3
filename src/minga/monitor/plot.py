"""Loss against time and against samples, with joins and departures marked, as a PNG.

A headline that is no loss, such as an accuracy, has an axis of its own at the right.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from minga.core.errors import ConfigurationError
from minga.core.png import blank, write
from minga.monitor.history import Entry, number_in, samples_of

_MARKS = {"joined": ("tab:green", "joined"), "left": ("tab:gray", "left"), "lost": ("tab:red", "lost")}


def plot_history(entries: Sequence[Entry], path: Path, *, title: str = "") -> None:
    """Draw a history into the file `path`, whole or not at all.

    Raises `ConfigurationError` if there is no loss to draw or `path` is no .png, `StorageError` if the disk refuses.
    """
    if path.suffix.lower() != ".png":
        raise ConfigurationError(f"{path}: the plot is a PNG; choose a name that ends in .png")
    steps = [e for e in entries if e["event"] == "step" and number_in(e, "loss") is not None]
    evaluations = [e for e in entries if e["event"] == "evaluation"]
    if not steps and not any(number_in(e, str(e.get("headline"))) is not None for e in evaluations):
        raise ConfigurationError("there is no loss to draw yet; watch the run for some steps first")
    figure = blank(11.0, 4.5)
    by_time, by_samples = figure.subplots(1, 2, sharey=True)
    _draw(by_time, by_samples, entries, steps, evaluations)
    if title:
        figure.suptitle(title.replace("$", r"\$"))
    write(figure, path)


def _draw(
    by_time: Any, by_samples: Any, entries: Sequence[Entry], steps: Sequence[Entry], evaluations: Sequence[Entry]
) -> None:
    begin = min(e["t"] for e in entries)
    unit_s, unit = (60.0, "minutes") if max(e["t"] for e in entries) - begin < 7200 else (3600.0, "hours")

    def curve(pair: tuple[Any, Any], points: Sequence[Entry], name: str, label: str, **style: Any) -> list[Any]:
        shown = [e for e in points if number_in(e, name) is not None]
        times = _with_holes([float(e["t"]) for e in shown]) if points is steps else [float(e["t"]) for e in shown]
        by_moment = {float(e["t"]): float(e[name]) for e in shown}
        values = [by_moment.get(time_s, math.nan) for time_s in times]
        samples = samples_at(times) if points is steps else _by_step(steps, shown)
        lines = pair[0].plot([(time_s - begin) / unit_s for time_s in times], values, label=label, **style)
        return [*lines, *pair[1].plot(samples, values, label=label, **style)]

    samples_at = _samples_at(entries)
    headline, held_out_loss = _held_out(evaluations)
    if steps:
        curve((by_time, by_samples), steps, "loss", "training", linewidth=1.2)
    if held_out_loss:
        curve((by_time, by_samples), evaluations, held_out_loss, "held out", marker="o")
    if headline != held_out_loss:
        right = by_time.twinx(), by_samples.twinx()
        right[0].sharey(right[1])
        right[0].tick_params(labelright=False)  # one scale for both, at the outer edge
        right[1].set(ylabel=headline)
        for axes, line in zip(
            (by_time, by_samples),
            curve(right, evaluations, headline, headline, marker="s", color="tab:purple"),
            strict=True,
        ):
            axes.plot([], [], label=headline, marker="s", color=line.get_color())  # for the legend
    for event, (colour, label) in _MARKS.items():
        if moments := [float(entry["t"]) for entry in entries if entry["event"] == event]:
            for axes, places in (
                (by_time, [(time_s - begin) / unit_s for time_s in moments]),
                (by_samples, samples_at(moments)),
            ):
                across = [x for place in places for x in (place, place, math.nan)]  # one artist for all lines
                upwards, height = [0.0, 1.0, math.nan] * len(places), axes.get_xaxis_transform()
                axes.plot(across, upwards, transform=height, color=colour, linestyle=":", linewidth=1.0, label=label)
    by_time.set(xlabel=f"time ({unit})", ylabel="loss")
    by_samples.set(xlabel="samples")
    for axes in (by_time, by_samples):
        axes.grid(alpha=0.3)
    by_time.figure.legend(*by_time.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)


def _with_holes(times: Sequence[float]) -> list[float]:
    """The moments of a curve, and one more wherever nobody looked: for a minute at least, and ten times as long as
    usual. The curve has a hole there.
    """
    apart = [later - earlier for earlier, later in pairwise(times)]
    longest = max(60.0, 10.0 * median(apart)) if apart else 60.0
    return sorted([*times, *(time_s + gap / 2.0 for time_s, gap in zip(times, apart, strict=False) if gap > longest)])


def _held_out(evaluations: Sequence[Entry]) -> tuple[str, str]:
    """The names of the headline and of the held-out loss, which may be the same; empty where there is none."""
    names = [str(e.get("headline")) for e in evaluations if number_in(e, str(e.get("headline"))) is not None]
    headline = names[-1] if names else ""
    if headline.endswith("loss") or not headline:
        return headline, headline
    losses = {name for e in evaluations for name in e if name.startswith("heldout_") and name.endswith("loss")}
    return headline, "heldout_loss" if "heldout_loss" in losses else max(losses, default="")


def _by_step(steps: Sequence[Entry], evaluations: Sequence[Entry]) -> list[float]:
    """Samples of the whole swarm up to the steps of evaluations: a host that comes back evaluates before it hears how
    many the steps had that it missed.
    """
    known = sorted(found for each in steps if (found := samples_of(each)) is not None) or [(0, 0)]
    steps_known, samples = [float(step) for step, _ in known], [float(total) for _, total in known]
    places = [number_in(each, "step") or 0.0 for each in evaluations]
    return [float(found) for found in np.interp(places, steps_known, samples, left=0.0)]


def _samples_at(entries: Sequence[Entry]) -> Callable[[Sequence[float]], list[float]]:
    """What says how many samples of the whole swarm there were up to each of some moments."""
    told = [entry for entry in entries if number_in(entry, "total_samples") is not None]
    known = sorted((float(entry["t"]), float(entry["total_samples"])) for entry in told)
    times, most = [time_s for time_s, _ in known], [0.0, *accumulate((total for _, total in known), max)]
    return lambda moments: [most[bisect_right(times, time_s)] for time_s in moments]
