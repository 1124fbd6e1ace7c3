"""The target batch size that a planned swarm should have, or (auto) that its leaders will choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from minga.averaging.clocking.batch_size import smallest_batch
from minga.averaging.solver.planner import divide
from minga.simulation.forecast.forecast import Forecast, forecast
from minga.simulation.forecast.planned_run import PlannedRun, swarm_rates

IDLE_SHARE: Final = 0.2
"""Communication should not take a larger share of the time."""


@dataclass(frozen=True)
class BatchLimits:
    """Between which batches to choose, and the share (0 to 1) of the time that communication may take.

    They are a run spec's `target_batch_size_min`, `target_batch_size_max` and `most_communication`, or else all that a
    run spec permits.
    """

    least: int = 1
    most: int = 1 << 24
    idle_share: float = IDLE_SHARE


def advised_batch(found: Forecast, limits: BatchLimits = BatchLimits()) -> int:
    """The smallest target batch within `limits` with which communication takes at most their share of the time, if
    nobody rests.
    """
    setting, rates = found.setting, swarm_rates(found.setting.volunteers)
    round_s = divide(rates, found.vector_bytes).predicted_s or 0.0
    speed = sum(peer.samples_per_second for peer in rates.peers)
    communication_s = found.communication_s - found.round_s + round_s
    overlapped = setting.strategy.facts.max_in_flight > 0
    fragments = setting.strategy.facts.fragments
    allowed = limits.least // fragments, limits.most // fragments
    return fragments * smallest_batch(speed, communication_s, limits.idle_share, allowed, overlapped=overlapped)


def with_advised_batch(setting: PlannedRun, limits: BatchLimits) -> PlannedRun:
    """The setting with the target batch size that the leaders of a run will settle at.

    They choose it as `minga.averaging.clocking.batch_size` does.

    Raises `ConfigurationError` as `forecast` does.
    """
    return replace(setting, target_batch_size=advised_batch(forecast(setting), limits))
