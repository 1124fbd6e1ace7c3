"""What the clocking benchmark looks at: the steps of a swarm, in either world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

SLOWER: Final = 20.0
"""How many times slower the slow peer is."""

LARGEST_SURPLUS, SHARE_WITHIN, LEAST_PARTICIPATION, LARGEST_COST = 0.1, 0.95, 0.95, 0.05


@dataclass(frozen=True)
class Step:
    """One step that was taken: when (in seconds, by the first peer that had it), and the samples of each member."""

    at_s: float
    samples: dict[str, int]

    @property
    def batch(self) -> int:
        """The realised batch."""
        return sum(self.samples.values())


def figures(steps: Sequence[Step], target_batch_size: int, peers: Sequence[str]) -> dict[str, Any]:
    """What these steps of the run show, `peers` being those that were there all the time and current."""
    ratios = [step.batch / target_batch_size for step in steps]
    within = sum(1.0 <= ratio <= 1.0 + LARGEST_SURPLUS for ratio in ratios)
    given = sum(1 for step in steps for peer in peers if step.samples.get(peer))
    return {
        "steps": len(steps),
        "participation": given / (len(steps) * len(peers)),
        "within": within / len(steps),
        "batch_ratios": [min(ratios), max(ratios)],
        "steps_per_hour": 3600.0 * (len(steps) - 1) / (steps[-1].at_s - steps[0].at_s),
    }


def holds(row: dict[str, Any]) -> bool:
    """Whether a case shows what it must."""
    if "slow_costs" in row:
        return bool(row["slow_costs"] <= LARGEST_COST and row["within"] >= SHARE_WITHIN)
    return bool(row["participation"] >= LEAST_PARTICIPATION and row["within"] >= SHARE_WITHIN)
