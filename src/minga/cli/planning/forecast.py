"""`minga plan --model … --peers …`: what a run would reach that does not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, get_args

from minga.cli.commands import PlanCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Display
from minga.core.errors import ConfigurationError

if TYPE_CHECKING:
    from minga.core.spec.run_spec import RunSpec
    from minga.planner.comparison import BatchLimits
    from minga.planner.model_facts import ModelFacts, OptimizerName
    from minga.planner.planned_run import PlannedRun
    from minga.planner.ways import TrainingWay

USUAL_TARGET_BATCH_SIZE, TUNED_BATCH_SIZE = 4096, 128


def run_forecast(options: PlanCommand, context: Context) -> None:
    """Say what the swarm would reach, and what to look out for. Raises `ConfigurationError` for what makes no sense."""
    from minga.cli.planning.forecast_view import forecast_json, forecast_table, forecast_text
    from minga.planner.advice import never, warnings
    from minga.planner.comparison import best_of, compare

    setting, ways, auto, phases = _asked(options)
    context.output.say("Planning …")
    compared = compare(setting, ways, auto)
    best = best_of(compared)
    found = (*never(best), *warnings(best.forecast))
    tables, words = forecast_table(best, compared), forecast_text(best, compared, found, options.precision, auto)
    said = [f"This is for the last phase of the run: {phases}."] if phases else []
    context.output.show(Display([*tables, *said, *words], forecast_json(best, compared, found, phases)))


def _asked(options: PlanCommand) -> tuple[PlannedRun, Sequence[TrainingWay], BatchLimits | None, str]:
    """The setting with the first way, all ways that are to be compared, how the target batch size is chosen if the
    leaders do that, and in words the phases of a run that changes its strategy, of which the last one is planned.
    """
    from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice, phases_in_words
    from minga.core.spec.sections import AUTO_STRATEGY, OptimizerSection
    from minga.planner.devices import THIS, Precision, read_measurements
    from minga.planner.model_facts import STATE_BYTES, recipe_spec
    from minga.planner.peer_text import parse_peers
    from minga.planner.planned_run import PlannedRun, resolve
    from minga.planner.ways import TrainingWay, compared_ways

    name = str(options.model)
    whole = recipe_spec(name, options.tokens) if name.lower().endswith(".toml") else None
    spec = None if whole is None else whole.phases[-1]
    precision = cast("Precision", one_of("--precision", options.precision, get_args(Precision)))
    named = options.strategy or _of(spec, "training", "strategy")
    said_by = "--strategy" if options.strategy else f"{name}: training.strategy ="
    strategy = one_of(said_by, None if named == AUTO_STRATEGY else named, STRATEGIES.names())
    codec = _codec_choice(options.codec or (None if named == AUTO_STRATEGY else _of(spec, "averaging", "codec")))
    usual = OptimizerSection(name="adamw" if options.fine_tune else "lamb") if spec is None else spec.optimizer
    wanted = cast("OptimizerName", one_of("--optimizer", options.optimizer or usual.name, tuple(STATE_BYTES)))
    optimizer = usual if wanted == usual.name else OptimizerSection(name=wanted)
    auto = _limits_of(spec) if spec and options.target_batch is None else None
    batch = options.target_batch or (
        spec.training.batch_range[0] if spec else TUNED_BATCH_SIZE if options.fine_tune else USUAL_TARGET_BATCH_SIZE
    )
    classes = parse_peers(str(options.peers))  # before the model, which takes seconds to import
    model = planned_model(options)
    measured = read_measurements() if any(each.device == THIS for each in classes) else ()
    peers = resolve(classes, model, optimizer, batch, precision=precision, measured=measured)
    ways = compared_ways(strategy, codec)
    if spec is not None and strategy is not None:
        download = None if options.codec else spec.averaging.download_codec
        ways = [TrainingWay(StrategyChoice.of(spec, strategy), str(codec), download)]
    first = ways[0]
    phases = "" if whole is None or options.strategy else phases_in_words(whole)
    return PlannedRun(peers, model, optimizer, batch, first.strategy, first.codec), ways, auto, phases


def planned_model(options: PlanCommand) -> ModelFacts:
    """What --model names, or with --fine-tune adapters on it."""
    from minga.planner.model_facts import USUAL_RANK, PlannedBits, model_facts, tuned_facts

    name = str(options.model)
    if not options.fine_tune:
        return model_facts(name, options.tokens)
    bits = 4 if options.base_bits is None else options.base_bits
    if bits not in get_args(PlannedBits):
        raise ConfigurationError(f"--base-bits {bits}: it must be 16, 8 or 4")
    return tuned_facts(name, options.tokens, options.rank or USUAL_RANK, cast("PlannedBits", bits))


def _limits_of(spec: RunSpec) -> BatchLimits | None:
    """Between which target batch sizes the leaders choose; None if there is only one."""
    from minga.planner.comparison import BatchLimits

    training = spec.training
    least, most = training.batch_range
    return None if training.target_batch_size != "auto" else BatchLimits(least, most, training.most_communication)


def _of(spec: RunSpec | None, section: str, key: str) -> str | None:
    return None if spec is None else str(getattr(getattr(spec, section), key))


def _codec_choice(text: str | None) -> str | None:
    from minga.averaging.codecs.registry import canonical_codec

    try:
        return None if text is None else canonical_codec(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--codec {text!r}: {str(error).removeprefix('codec: ')}") from error


def one_of(option: str, value: str | None, allowed: Sequence[str]) -> str | None:
    """The `value` of an option. Raises `ConfigurationError` if it is none of those that are `allowed`."""
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{option} {value!r}: it must be one of {', '.join(allowed)}")
    return value
