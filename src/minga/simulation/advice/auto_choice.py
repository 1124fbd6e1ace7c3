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

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from minga.averaging.solver.planner import divide
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import AUTO_STRATEGY
from minga.recipes.registry import CUSTOM
from minga.simulation.advice.advised_batch import BatchLimits
from minga.simulation.advice.comparison import Compared, best_of, compare
from minga.simulation.advice.ways import DELAYED, FEW_INNER_STEPS, SYNCHRONOUS, TrainingWay, local_way
from minga.simulation.forecast.devices import THIS, read_measurements
from minga.simulation.forecast.model_facts import facts_of_recipe
from minga.simulation.forecast.peer_text import parse_peers
from minga.simulation.forecast.planned_run import PlannedRun, swarm_rates
from minga.simulation.forecast.volunteers import resolve

LITTLE_KAPPA: Final = 0.1
HIDDEN_KAPPA: Final = 0.8
MOST_INNER_STEPS: Final = 500
USUAL_PEERS: Final = "8x(t4, up=20Mbit, down=100Mbit)"
"""Volunteers at home, where nobody says who will take part."""
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
    (reference,) = compare(setting, [TrainingWay(SYNCHRONOUS, "float16")])
    kappa = _transfer_to_computing(reference)
    if kappa <= LITTLE_KAPPA:
        (found,) = compare(setting, [TrainingWay(SYNCHRONOUS, codec or "adaptive")], auto)
        return AutoChoice(found, kappa, f"{_words(kappa)}: communication hardly shows")
    delayed = TrainingWay(DELAYED, codec or "int8")
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
    """With all peers; in a slow swarm a synchronous step would have some of them rest."""
    setting = found.forecast.setting
    rates = swarm_rates(setting.volunteers)
    round_s = divide(rates, found.forecast.vector_bytes).predicted_s or 0.0
    return round_s * sum(peer.samples_per_second for peer in rates.peers) / setting.target_batch_size


def _local_ways(setting: PlannedRun, codec: str | None) -> list[TrainingWay]:
    """With and without overlap, each with the smallest number of inner steps that does."""
    codec = codec or next(each for each in ("int4", "int8") if TrainingWay(SYNCHRONOUS, each).is_installed)
    (synchronous,) = compare(setting, [TrainingWay(SYNCHRONOUS, codec)])
    share = _transfer_to_computing(synchronous)
    trainers = sum(each.peers.count for each in setting.volunteers if each.computes)
    inner = max(1, setting.target_batch_size // trainers)
    found = []
    for overlap, most in ((False, LITTLE_KAPPA), (True, HIDDEN_KAPPA)):
        wanted = math.ceil(share / most) if share < math.inf else MOST_INNER_STEPS
        steps = min(max(wanted, FEW_INNER_STEPS), MOST_INNER_STEPS)
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


def with_chosen_strategy(spec: RunSpec, peers: str | None = None) -> tuple[RunSpec, str]:
    """The spec of a run that is about to begin, with a strategy in the place of "auto", and why in one line; as it is,
    with no words, if it names a strategy.

    `peers` are those that will take part, as `minga plan --peers` takes them; by default `USUAL_PEERS`. Raises
    `ConfigurationError` for a spec that plans changes of a strategy not chosen yet, and for peers that make no sense.
    """
    training = spec.training
    if training.strategy != AUTO_STRATEGY:
        return spec, ""
    if training.strategy_changes:
        raise ConfigurationError(
            f'training.strategy = "{AUTO_STRATEGY}" is chosen for the whole run: leave training.strategy_changes out'
        )
    text = peers or USUAL_PEERS
    try:
        found = _for_spec(spec, text)
    except _UnknownError as error:
        plain = spec.amended({"training.strategy": SYNCHRONOUS.name})
        return plain, f'strategy = "{SYNCHRONOUS.name}", as usual, since nothing can be foreseen: {error}'
    assumed = f"for {text}" if peers else f"for {text}, since no --peers were named"
    settings = "".join(f", {key} = {json.dumps(value)}" for key, value in found.compared.way.strategy.table.items())
    chosen = found.resolved(spec)
    return chosen, (
        f'strategy = "{chosen.training.strategy}"{settings}, codec = "{chosen.averaging.codec}", target_batch_size = '
        f"{chosen.training.target_batch_size}, {assumed}: {found.reason}"
    )


class _UnknownError(Exception):
    """Nothing can be foreseen of this run."""


def _for_spec(spec: RunSpec, peers: str) -> AutoChoice:
    training = spec.training
    if spec.security.verification == "byzantine":
        raise _UnknownError("members that check each other take synchronous steps")
    if spec.model.recipe == CUSTOM:
        raise _UnknownError('model.recipe = "custom" does not say how large the model is')
    classes, least = parse_peers(peers), training.batch_range[0]
    model = facts_of_recipe(spec, "the run spec")
    measured = read_measurements() if any(each.device == THIS for each in classes) else ()
    volunteers = resolve(classes, model, spec.optimizer.name, least, measured=measured)
    codec = spec.averaging.codec if "codec" in spec.averaging.model_fields_set else None
    setting = PlannedRun(volunteers, model, spec.optimizer.name, least, SYNCHRONOUS, codec or "float16")
    is_auto = training.target_batch_size == "auto"
    limits = BatchLimits(*training.batch_range, training.most_communication) if is_auto else None
    return choose(setting, codec, limits)
