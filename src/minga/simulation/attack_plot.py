"""A picture of an attack: a metric against steps, with its onset and the bans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Curve:
    """The metric of one run by step: `values[i]` after step `first + i`; `bans` are the steps in which a member was
    banned, once for each.
    """

    values: Sequence[float]
    bans: Sequence[int] = field(default=())
    first: int = 0

    @property
    def steps(self) -> range:
        """The steps of the values."""
        return range(self.first, self.first + len(self.values))


def draw_attack(axes: Any, curves: Mapping[str, Curve], onset: int, metric: str) -> None:
    """Draw the curves by their labels into matplotlib axes; before the step after `onset` nobody attacks."""
    for label, curve in curves.items():
        (line,) = axes.plot(curve.steps, curve.values, label=label)
        if bans := [step for step in curve.bans if step in curve.steps]:
            heights = [curve.values[step - curve.first] for step in bans]
            axes.plot(bans, heights, "v", color=line.get_color(), label=f"bans ({len(bans)})")
    axes.axvline(onset, color="gray", linestyle="--", label="onset")
    axes.set(xlabel="step", ylabel=metric)
