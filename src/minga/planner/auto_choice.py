"""`training.strategy = "auto"`: which strategy a run begins with, from its links, its devices and its model.

Theory of operation. These ways are compared, the usual ones first:

    synchronous    adaptive, int8, int4
    delayed        int8, int4
    local          int4 and sign(magnitudes=2), each with the smallest H from 10 to 500 for which the transfer takes at
                   most 0.8 of a round's computing (overlapped: it is hidden then, as is the time of codecs, which no
                   forecast has), or at most 0.1 or 0.3 of it

Of each the forecast says how many samples a second count, and the table of gaps how many more of them it needs to the
same loss. The way that comes first to a loss is taken, or the first in the list that is at most 5 % later. A round of H
inner steps has H target batches: with local steps, what the run spec counts in steps is divided by H.

kappa = transfer of a float16 round / computing of a target batch, as the planner foresees both, is part of the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.solver.planner import divide
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import resolved, spelled
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import AUTO_STRATEGY
from minga.core.units import counted
from minga.planner.comparison import GOOD_ENOUGH, BatchLimits, Compared, best_of, compare
from minga.planner.devices import THIS, read_measurements
from minga.planner.model_facts import facts_of_recipe
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve, swarm_rates
from minga.planner.ways import DELAYED, SYNCHRONOUS, TrainingWay, local_way
from minga.recipes.registry import CUSTOM, spelled_out

WAITED_SHARES, HIDDEN_SHARE = (0.1, 0.3), 0.8
"""How much of a round's computing its transfer may take: where peers wait for it, and where they go on."""
FEWEST_INNER_STEPS, MOST_INNER_STEPS = 10, 500
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
            changes["averaging.average_parameters_every"] = 0  # each round averages them
        return spec.model_copy(update={"strategy": {**spec.strategy, **table}}).amended(changes)


def choose(
    setting: PlannedRun, codec: str | None = None, auto: BatchLimits | None = None, *, has_sketch: bool = False
) -> AutoChoice:
    """The strategy for these peers and this model, of which `setting` has the target batch of synchronous steps.

    With a `codec` that is the run's, whatever the strategy. With `auto` the leaders choose the batch, and no local
    steps are taken, whose batch is to be fixed. Beside a sketch, which may leave something out, no codec is taken that
    does so too. Raises `ConfigurationError` as `forecast` does.
    """
    (reference,) = compare(setting, [TrainingWay(SYNCHRONOUS, "float16")])
    kappa = _transfer_to_computing(reference)
    local_codecs = (codec,) if codec is not None else ("int4",) if has_sketch else ("int4", "sign(magnitudes=2)")
    ways = _shared_steps(codec) + ([] if auto else _local_ways(setting, local_codecs))
    found = best_of(compare(setting, ways, auto))
    return AutoChoice(found, kappa, f"{_words(kappa)}: {_why(found, reference, is_batch_chosen=auto is not None)}")


def _shared_steps(codec: str | None) -> list[TrainingWay]:
    """Those whose every step is shared; all with the run's codec if it names one."""
    if codec is not None:
        return [TrainingWay(SYNCHRONOUS, codec), TrainingWay(DELAYED, codec)]
    ways = [TrainingWay(SYNCHRONOUS, each) for each in ("adaptive", "int8", "int4")]
    ways += [TrainingWay(DELAYED, each) for each in ("int8", "int4")]
    return [way for way in ways if way.is_installed]


def _why(found: Compared, reference: Compared, *, is_batch_chosen: bool) -> str:
    if found.way.strategy == SYNCHRONOUS and found.equal_s >= reference.equal_s / (1.0 + GOOD_ENOUGH):
        return "communication hardly shows"
    sooner = reference.equal_s / found.equal_s
    gap = "an unknown gap"
    if found.gap is not None:
        runs = f", {counted(found.gap.runs, 'run')}" if found.gap.runs else ""
        gap = f"a gap of {found.gap.percent:.1f} % ({found.gap.basis}{runs})"
    said = f"it comes {sooner:.1f} times as soon to a loss as synchronous float16, by {gap}"
    return f"{said}; local steps need a number as target_batch_size" if is_batch_chosen else said


def _words(kappa: float) -> str:
    return f"the transfer of a float16 round takes {kappa:.2g} of a batch's computing"


def _transfer_to_computing(found: Compared) -> float:
    """With all peers; in a slow swarm a synchronous step would have some of them rest."""
    setting = found.forecast.setting
    rates = swarm_rates(setting.volunteers)
    round_s = divide(rates, found.forecast.vector_bytes).predicted_s or 0.0
    return round_s * sum(peer.samples_per_second for peer in rates.peers) / setting.target_batch_size


def _local_ways(setting: PlannedRun, codecs: Sequence[str]) -> list[TrainingWay]:
    """With each codec and share of the transfer the smallest number of inner steps that does."""
    found = []
    for each in codecs:
        (synchronous,) = compare(setting, [TrainingWay(SYNCHRONOUS, each)])
        share = _transfer_to_computing(synchronous)
        found.append(local_way(_inner_steps(share, HIDDEN_SHARE), each, overlap=True))
        waited = dict.fromkeys(_inner_steps(share, most) for most in WAITED_SHARES)
        found += [local_way(steps, each) for steps in waited]
    return found


def _inner_steps(share: float, most: float) -> int:
    """The fewest for which the transfer, which is `share` of computing with one of them, is at most so much of it."""
    wanted = math.ceil(share / most) if share < math.inf else MOST_INNER_STEPS
    return min(max(wanted, FEWEST_INNER_STEPS), MOST_INNER_STEPS)


def _in_rounds(spec: RunSpec, batches: int) -> Mapping[str, Any]:
    """What the spec counts in steps of one batch, in rounds of several; 0 and nothing stay what they are."""
    changes: dict[str, Any] = {}
    for key in _COUNTED_IN_STEPS:
        section, name = key.split(".")
        if (count := getattr(getattr(spec, section), name)) is not None and count > 0:
            changes[key] = max(1, math.ceil(count / batches))
    sketch = resolved(SKETCHES, spec.averaging.sketch)
    if count := getattr(sketch.settings, "start", 0):
        rounds = sketch.settings.model_copy(update={"start": max(1, math.ceil(count / batches))})
        changes["averaging.sketch"] = spelled(sketch.name, rounds)
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
    model = facts_of_recipe(spelled_out(spec), "the run spec")
    measured = read_measurements() if any(each.device == THIS for each in classes) else ()
    volunteers = resolve(classes, model, spec.optimizer, least, measured=measured)
    codec = spec.averaging.codec if "codec" in spec.averaging.model_fields_set else None
    setting = PlannedRun(volunteers, model, spec.optimizer, least, SYNCHRONOUS, codec or "float16")
    is_auto = training.target_batch_size == "auto"
    limits = BatchLimits(*training.batch_range, training.most_communication) if is_auto else None
    return choose(setting, codec, limits, has_sketch=spec.averaging.sketch != "identity")
