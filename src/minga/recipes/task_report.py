"""What a task that judges an exported model is asked, and what it answers. To import this imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

Say = Callable[[str], None]
"""Tells the user how far a task is, in one line."""


@dataclass(frozen=True)
class TaskOptions:
    """`data` names the examples, `training_examples` takes only so many of them.

    Chance, such as that of models from scratch, is drawn anew in each of `runs`, by the number of the run.
    """

    task: str
    data: str | None = None
    runs: int = 3
    training_examples: int | None = None


@dataclass(frozen=True)
class Score:
    """Mean and standard deviation of a figure over the runs; the deviation of one run is 0."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class TaskReport:
    """The figures of the trained model and those from scratch, by name, and with how much they were found."""

    task: str
    data: str
    examples: int
    runs: int
    trained: dict[str, Score]
    from_scratch: dict[str, Score]

    def as_json(self) -> dict[str, Any]:
        """The report in plain values."""
        return asdict(self)


def summary(runs: Sequence[Mapping[str, float]]) -> dict[str, Score]:
    """Mean and deviation of each figure over the runs."""
    return {
        name: Score(fmean(values), stdev(values) if len(values) > 1 else 0.0)
        for name in runs[0]
        if (values := [run[name] for run in runs])
    }


def in_words(figures: Mapping[str, float]) -> str:
    """Figures in one line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
