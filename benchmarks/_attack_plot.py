"""A picture of one attack: held-out accuracy against steps, with its onset and the bans."""

from __future__ import annotations

from pathlib import Path

from benchmarks._attack_runs import Told
from minga.monitor._picture import blank, write

SIZE_INCHES = (9.0, 4.5)


def draw(name: str, curves: dict[str, Told], attack_from: int, path: Path) -> None:
    """Draw the curves, each by its label, and the bans in them, into a PNG file."""
    figure = blank(*SIZE_INCHES)
    axes = figure.subplots()
    for label, told in curves.items():
        (line,) = axes.plot(told.accuracies, label=label)
        steps = [step + 1 for step, _ in told.bans.values()]
        if steps:
            heights = [told.accuracies[step] for step in steps]
            axes.plot(steps, heights, "v", color=line.get_color(), label=f"bans ({len(steps)})")
    axes.axvline(attack_from, color="gray", linestyle="--", label="onset")
    axes.set_xlabel("step")
    axes.set_ylabel("held-out accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(name)
    write(figure, path)
