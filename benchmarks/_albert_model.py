"""The five setups of collaborative ALBERT-large training, and how long a step of each takes at best.

Step time = B / sum of speeds + matchmaking + transfer, or with the delayed strategy the longer of the computation and
of what goes on beside it. Transfer of S bytes among n members of rate b_i (both ways), s of which aggregate:

    equal parts      S (1 + (n - 2) / n) / min b_i
    adaptive parts   S max( (n - 2 + s) / sum b_i,  1 / min b_i )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["synchronous", "delayed"]

TARGET_BATCH_SIZE = 4096
SAMPLES_PER_SECOND = 10.0
"""Of each trainer, a T4."""

PARAMETERS = 17_850_000
VECTOR_BYTES = 2 * 2 * PARAMETERS
"""Gradients and parameters in float16."""

MATCHMAKING_S = 5.0
"""What finding a group took the system that the setups were described for."""


@dataclass(frozen=True)
class Setup:
    """One setup: line rates in Mb/s of trainers and auxiliaries, the paper's ideal step time and relative speed."""

    number: int
    name: str
    trainers: tuple[float, ...]
    paper_ideal_s: float
    paper_percent: float
    auxiliaries: tuple[float, ...] = ()
    adaptive: bool = True

    @property
    def members(self) -> int:
        """How many take part in a round."""
        return len(self.trainers) + len(self.auxiliaries)

    @property
    def compute_s(self) -> float:
        """Seconds in which all trainers together compute the target batch."""
        return TARGET_BATCH_SIZE / (SAMPLES_PER_SECOND * len(self.trainers))

    @property
    def transfer_s(self) -> float:
        """The shortest time of a round by the formula above."""
        rates = [rate * 1e6 / 8 for rate in (*self.trainers, *self.auxiliaries)]
        return VECTOR_BYTES * (adaptive_cost(rates) if self.adaptive else equal_cost(rates))

    def ideal_s(self, strategy: Strategy, matchmaking_s: float) -> float:
        """The shortest step time, in seconds, with so much matchmaking."""
        beside = matchmaking_s + self.transfer_s
        return max(self.compute_s, beside) if strategy == "delayed" else self.compute_s + beside


def equal_cost(rates: Sequence[float]) -> float:
    """Seconds per byte of a round with equal parts."""
    return (1 + (len(rates) - 2) / len(rates)) / min(rates)


def adaptive_cost(rates: Sequence[float]) -> float:
    """Seconds per byte of a round with the best parts, all members being able to aggregate."""
    return max((2 * len(rates) - 2) / sum(rates), 1 / min(rates))


MIXED = (200.0,) * 4 + (100.0,) * 8 + (50.0,) * 4
AUXILIARIES = (500.0,) * 4
GUESTS = (100.0,) * 8

UNIFORM = Setup(1, "high bandwidth", (25_000.0,) * 16, 30.6, 100.0, adaptive=False)
EQUAL = Setup(2, "heterogeneous, equal parts", MIXED, 52.0, 59.0, adaptive=False)
ADAPTIVE = Setup(3, "load balancing", MIXED, 42.0, 73.0)
ASSISTED = Setup(4, "auxiliaries", MIXED, 42.0, 73.0, AUXILIARIES)
WITH_GUESTS = Setup(5, "part-time trainers there", MIXED + GUESTS, 33.5, 91.0, AUXILIARIES)
SETUPS = (UNIFORM, EQUAL, ADAPTIVE, ASSISTED, WITH_GUESTS)

PAPER_TIME_VARYING_PERCENT = 82.0
"""Setup 5 on average, with its eight part-time trainers there for half of the time."""
