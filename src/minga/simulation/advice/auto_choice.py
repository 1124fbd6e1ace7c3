"""`training.strategy = "auto"`: which strategy a run begins with, from its links, its devices and its model.

Theory of operation. With kappa = transfer of a float16 round / computing of a target batch, both as the planner
foresees them:

    kappa <= 0.1          synchronous: communication hardly shows
    kappa <= 0.8          delayed, int8: computing hides it
    else                  local steps, with the smallest H from 30 to 500 for which the transfer takes at most a tenth
                          of a round's computing, or (overlapped) at most 0.8 of it, since it is hidden then

Of local steps with and without overlap, and delayed int8 in case that is still better, the one comes first to a loss
that the forecast, with the table of gaps, says. A round of H inner steps has H target batches: with local steps, what
the run spec counts in steps is divided by H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.simulation.advice.advised_batch import BatchLimits
from minga.simulation.advice.comparison import Compared, best_of, compare
from minga.simulation.advice.ways import AUTO, DELAYED, SYNCHRONOUS, Way, local_way
from minga.simulation.forecast.planned_run import PlannedRun

LITTLE_KAPPA: Final = 0.1
HIDDEN_KAPPA: Final = 0.8
LEAST_INNER_STEPS, MOST_INNER_STEPS = 30, 500
_COUNTED_IN_STEPS: Final = (
    "optimizer.warmup_steps",
    "optimizer.total_steps",
    "training.stop_after_steps",
    "state.digest_every",
    "checkpoints.every_steps",
    "checkpoints.archive_every",
)


@dataclass(frozen=True)
class AutoChoice:
    """The way that was chosen, `kappa`, and the reason in one line."""

    compared: Compared
    kappa: float
    reason: str

    def resolved(self, spec: RunSpec) -> RunSpec:
        """The run spec with this strategy and its settings in the place of "auto"."""
        way = self.compared.way
        table = {way.strategy.name: dict(way.strategy.table)} if way.strategy.table else {}
        changes: dict[str, Any] = {"training.strategy": way.strategy.name}
        if "codec" not in spec.averaging.model_fields_set:
            changes["averaging.codec"] = way.codec
        if way.batches > 1:
            changes["training.target_batch_size"] = self.compared.forecast.setting.target_batch_size
            changes |= _in_rounds(spec, way.batches)
        return spec.model_copy(update={"strategy": {**spec.strategy, **table}}).amended(changes)


def choose(setting: PlannedRun, codec: str | None = None, auto: BatchLimits | None = None) -> AutoChoice:
    """The strategy for these peers and this model, of which `setting` has the target batch of synchronous steps.

    With a `codec` that is the run's, whatever the strategy. With `auto` the leaders choose the batch, and no local
    steps are taken, whose batch is to be fixed. Raises `ConfigurationError` as `forecast` does.
    """
    (reference,) = compare(setting, [Way(SYNCHRONOUS, "float16")])
    kappa = _transfer_to_computing(reference)
    if kappa <= LITTLE_KAPPA:
        (found,) = compare(setting, [Way(SYNCHRONOUS, codec or "adaptive")], auto)
        return AutoChoice(found, kappa, f"{_words(kappa)}: communication hardly shows")
    delayed = Way(DELAYED, codec or "int8")
    if kappa <= HIDDEN_KAPPA or auto is not None:
        (found,) = compare(setting, [delayed], auto)
        why = "computing hides it" if kappa <= HIDDEN_KAPPA else "local steps need a number as target_batch_size"
        return AutoChoice(found, kappa, f"{_words(kappa)}: {why}")
    ways = [delayed, *_local_ways(setting, codec)]
    found = best_of(compare(setting, ways))
    sooner = reference.equal_s / found.equal_s
    gap = "an unknown gap" if found.gap is None else f"a gap of {found.gap.percent:.1f} % ({found.gap.basis})"
    return AutoChoice(
        found, kappa, f"{_words(kappa)}: it comes {sooner:.1f} times as soon to a loss as synchronous float16, by {gap}"
    )


def _words(kappa: float) -> str:
    return f"the transfer of a float16 round takes {kappa:.2g} of a batch's computing"


def _transfer_to_computing(found: Compared) -> float:
    forecast = found.forecast
    return forecast.round_s / forecast.filling_s if forecast.filling_s > 0.0 else math.inf


def _local_ways(setting: PlannedRun, codec: str | None) -> list[Way]:
    """With and without overlap, each with the smallest number of inner steps that does."""
    codec = codec or next(each for each in ("int4", "int8") if Way(SYNCHRONOUS, each).is_installed)
    (synchronous,) = compare(setting, [Way(SYNCHRONOUS, codec)])
    share = _transfer_to_computing(synchronous)
    trainers = sum(each.peers.count for each in setting.volunteers if each.computes)
    inner = max(1, setting.target_batch_size // trainers)
    found = []
    for overlap, most in ((False, LITTLE_KAPPA), (True, HIDDEN_KAPPA)):
        wanted = math.ceil(share / most) if share < math.inf else MOST_INNER_STEPS
        steps = min(max(wanted, LEAST_INNER_STEPS), MOST_INNER_STEPS)
        found.append(local_way(steps, codec, local_batch=inner, overlap=overlap))
    return found


def _in_rounds(spec: RunSpec, batches: int) -> Mapping[str, Any]:
    """What the spec counts in steps of one batch, in rounds of several; 0 and nothing stay what they are."""
    changes = {}
    for key in _COUNTED_IN_STEPS:
        section, name = key.split(".")
        if (count := getattr(getattr(spec, section), name)) is not None and count > 0:
            changes[key] = max(1, math.ceil(count / batches))
    return changes


def check_is_auto(spec: RunSpec) -> None:
    """Raise `ConfigurationError` for a spec of which only a part is left to choose."""
    if spec.training.strategy == AUTO and spec.training.strategy_changes:
        raise ConfigurationError(
            'training.strategy = "auto" chooses one strategy for the whole run: leave training.strategy_changes out'
        )
