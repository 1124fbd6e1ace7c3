"""Ways to train, compared by their forecasts and by how far behind their losses are after equally many samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from minga.averaging.clocking.batch_size import smallest_batch
from minga.averaging.solver.planner import divide
from minga.combinations import check_combinations, refusals
from minga.core.spec.sections import MAX_BATCH
from minga.planner.forecast import Forecast, forecast
from minga.planner.planned_run import PlannedRun, spec_of, swarm_rates
from minga.planner.ways import Gap, TrainingWay

# ---- The target batch size that a planned swarm should have, or (auto) that its leaders will choose.


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
    allowed = max(1, limits.least // fragments), limits.most // fragments
    return fragments * smallest_batch(speed, communication_s, limits.idle_share, allowed, overlapped=overlapped)


def with_advised_batch(setting: PlannedRun, limits: BatchLimits) -> PlannedRun:
    """The setting with the target batch size that the leaders of a run will settle at.

    They choose it as `minga.averaging.clocking.batch_size` does.

    Raises `ConfigurationError` as `forecast` does.
    """
    return replace(setting, target_batch_size=advised_batch(forecast(setting), limits))


# ---- Ways and what comes of them.


GOOD_ENOUGH: Final = 0.05
"""By which fraction a way has to come sooner to a loss than those before it to be called better."""

FRUGAL_TIME: Final = 1.15
"""How many times as long to the same loss a frugal way may take."""

FRUGAL_UPLOAD: Final = 0.25
"""At most this share of the uploads of another way makes one frugal."""


@dataclass(frozen=True)
class Compared:
    """A way and what comes of it."""

    way: TrainingWay
    forecast: Forecast
    gap: Gap | None

    @property
    def arrives(self) -> bool:
        """Whether it comes to the loss of the reference at all, as far as one knows."""
        return self.gap is None or self.gap.arrives

    @property
    def sample_s(self) -> float:
        """Seconds for each sample that counts."""
        return self.forecast.step_s / self.forecast.setting.round_batch_size

    @property
    def equal_s(self) -> float:
        """Seconds for each sample that the reference would need to the same loss; where nobody knows the gap, as if
        there were none.
        """
        return self.sample_s * (1.0 if self.gap is None else self.gap.extra_samples)

    @property
    def traffic_per_day(self) -> tuple[float, float]:
        """Bytes that a peer with gradients sends and receives a day, on average in the class with most of them."""
        classes = zip(self.forecast.setting.volunteers, self.forecast.classes, strict=True)
        computing = [figures for each, figures in classes if each.computes]
        return (
            max(figures.upload_bytes_per_day for figures in computing),
            max(figures.download_bytes_per_day for figures in computing),
        )


def compare(setting: PlannedRun, ways: Sequence[TrainingWay], auto: BatchLimits | None = None) -> tuple[Compared, ...]:
    """What comes of these ways, in their order, but for those that no run can have.

    With `auto` each has the target batch size within these limits that its leaders would choose, but for local steps.
    Raises `ConfigurationError`, with the nearest way that runs can have, if none is left.
    """
    every = [(way, _planned(setting, way)) for way in (_with_inner_batch(each, setting) for each in ways)]
    allowed = [(way, planned) for way, planned in every if not refusals(spec_of(planned))]
    if not allowed:
        check_combinations(spec_of(every[0][1]))
    found = []
    for way, planned in allowed:
        chosen = planned if auto is None or way.batches > 1 else with_advised_batch(planned, auto)
        found.append(Compared(way, forecast(chosen), way.gap(setting.optimizer.name)))
    return tuple(found)


def best_of(found: Sequence[Compared]) -> Compared:
    """The one that comes first to a loss; or the first of those that are hardly later. One that never arrived in our
    benchmark is taken only where there is no other.
    """
    found = [each for each in found if each.arrives] or found
    least_s = min(each.equal_s for each in found)
    return next(each for each in found if each.equal_s <= least_s * (1.0 + GOOD_ENOUGH) or math.isinf(least_s))


def frugal_of(found: Sequence[Compared], best: Compared) -> Compared | None:
    """The soonest of those that send far less than the best one and are not much later; None if there is none."""
    frugal = [
        each
        for each in found
        if each.gap is not None
        and each.arrives
        and each.equal_s <= best.equal_s * FRUGAL_TIME
        and each.traffic_per_day[0] <= best.traffic_per_day[0] * FRUGAL_UPLOAD
    ]
    return min(frugal, key=lambda each: each.equal_s, default=None)


def _with_inner_batch(way: TrainingWay, setting: PlannedRun) -> TrainingWay:
    """The way with inner steps of one peer's part of the target batch, by which its gap was measured; a micro-batch,
    which they would be of otherwise, may be far smaller.
    """
    table = way.strategy.table
    if way.strategy.name != "local" or way.batches == 1 or "local_batch" in table:
        return way
    trainers = sum(each.peers.count for each in setting.volunteers if each.computes)
    inner = max(1, setting.target_batch_size // max(1, trainers))
    return replace(way, strategy=replace(way.strategy, table={**table, "local_batch": inner}))


def _planned(setting: PlannedRun, way: TrainingWay) -> PlannedRun:
    fragments = way.strategy.facts.fragments
    batch = min(setting.target_batch_size * way.batches, MAX_BATCH)
    return replace(
        setting,
        strategy=way.strategy,
        codec=way.codec,
        download_codec=way.download_codec,
        target_batch_size=max(fragments, batch // fragments * fragments),
    )
