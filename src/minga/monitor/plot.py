"""Loss against time and against samples, with joins and departures marked, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError
from minga.monitor.history import Entry
from minga.monitor.png import blank, write

_MARKS = {"joined": ("tab:green", "joined"), "left": ("tab:gray", "left"), "lost": ("tab:red", "lost")}


def plot_history(entries: Sequence[Entry], path: Path, *, title: str = "") -> None:
    """Draw a history into the file `path`, whole or not at all.

    Raises `ConfigurationError` if there is no loss to draw or `path` is no .png, `StorageError` if the disk refuses.
    """
    if path.suffix.lower() != ".png":
        raise ConfigurationError(f"{path}: the plot is a PNG; choose a name that ends in .png")
    steps = [e for e in entries if e["event"] == "step" and _number(e, "loss")]
    held_out = [e for e in entries if e["event"] == "evaluation" and _number(e, _twin(e))]
    if not steps and not held_out:
        raise ConfigurationError("there is no loss to draw yet; watch the run for some steps first")
    figure = blank(11.0, 4.5)
    by_time, by_samples = figure.subplots(1, 2, sharey=True)
    _draw(by_time, by_samples, entries, steps, held_out)
    if title:
        figure.suptitle(title.replace("$", r"\$"))
    write(figure, path)


def _draw(
    by_time: Any, by_samples: Any, entries: Sequence[Entry], steps: Sequence[Entry], held_out: Sequence[Entry]
) -> None:
    begin = min(e["t"] for e in entries)
    unit_s, unit = (60.0, "minutes") if max(e["t"] for e in entries) - begin < 7200 else (3600.0, "hours")
    for points, style, label in ((steps, {"linewidth": 1.2}, "training"), (held_out, {"marker": "o"}, "held out")):
        if points:
            values = [float(e["loss" if points is steps else _twin(e)]) for e in points]
            by_time.plot([(e["t"] - begin) / unit_s for e in points], values, label=label, **style)
            by_samples.plot([_samples_at(entries, e["t"]) for e in points], values, label=label, **style)
    named: set[str] = set()
    for entry in entries:
        if entry["event"] in _MARKS:
            colour, label = _MARKS[entry["event"]]
            line = {"color": colour, "linestyle": ":", "linewidth": 1.0, "label": "" if label in named else label}
            by_time.axvline((entry["t"] - begin) / unit_s, **line)
            by_samples.axvline(_samples_at(entries, entry["t"]), **line)
            named.add(label)
    by_time.set(xlabel=f"time ({unit})", ylabel="loss")
    by_samples.set(xlabel="samples")
    for axes in (by_time, by_samples):
        axes.grid(alpha=0.3)
        axes.legend()


def _twin(evaluation: Entry) -> str:
    """The figure that is computed like the loss of training: the headline may be made of it, as perplexity is."""
    return "heldout_loss" if _number(evaluation, "heldout_loss") else str(evaluation.get("headline"))


def _samples_at(entries: Sequence[Entry], time_s: float) -> float:
    """Samples of the whole swarm up to a moment."""
    known = [e["total_samples"] for e in entries if e["t"] <= time_s and _number(e, "total_samples")]
    return float(max(known, default=0))


def _number(entry: Entry, name: str) -> bool:
    value = entry.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
