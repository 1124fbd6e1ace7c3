"""The ways to train that a run can choose from, its strategies and codecs, compared by their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from minga.averaging.codecs.registry import CODECS
from minga.averaging.strategy_choice import StrategyChoice
from minga.simulation.advice.advised_batch import BatchLimits, with_advised_batch
from minga.simulation.forecast.forecast import Forecast, forecast
from minga.simulation.forecast.planned_run import PlannedRun, spec_of
from minga.training.combinations.judgement import check_combinations, refusals

USUAL_CODECS: Final = ("adaptive", "float16", "int8", "float32")
"""Those of minga's own that are compared, the usual one first; bfloat16 takes as many bytes as float16."""

GOOD_ENOUGH: Final = 0.05
"""By which fraction a strategy with stale gradients, or an unusual codec, has to be faster to be called better."""


def compared_codecs() -> tuple[str, ...]:
    """The usual ones, then those of other packages that are installed here."""
    return (*USUAL_CODECS, *(name for name in CODECS.names() if CODECS.origin(name) is not None))


def compare(
    setting: PlannedRun, strategies: Sequence[StrategyChoice], codecs: Sequence[str], auto: BatchLimits | None = None
) -> tuple[Forecast, ...]:
    """The forecasts of all these ways, in the order strategies, codecs, but for those that no run can have.

    With `auto` each has the target batch size within these limits that its leaders would choose.
    Raises `ConfigurationError`, with the nearest way that runs can have, if none is left.
    """
    every = [replace(setting, strategy=strategy, codec=codec) for strategy in strategies for codec in codecs]
    ways = [way for way in every if not refusals(spec_of(way))]
    if not ways:
        check_combinations(spec_of(every[0]))
    return tuple(forecast(way if auto is None else with_advised_batch(way, auto)) for way in ways)


def best_of(forecasts: Sequence[Forecast]) -> Forecast:
    """The fastest, by the time for each sample of the target batch; or the first of those that are hardly slower."""
    least_s = min(map(_sample_s, forecasts))
    return next(each for each in forecasts if _sample_s(each) <= least_s * (1.0 + GOOD_ENOUGH))


def _sample_s(found: Forecast) -> float:
    return found.step_s / found.setting.round_batch_size
