"""`minga plan --model … --peers …`: what a run would reach that does not exist yet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast, get_args

from rich.table import Table

from minga.averaging.codecs.registry import canonical_codec
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice, phases_in_words
from minga.cli.commands import PlanCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import AUTO_STRATEGY, OptimizerSection
from minga.core.units import counted, format_duration, format_number, format_size
from minga.planner.advice import never, warnings
from minga.planner.comparison import GOOD_ENOUGH, BatchLimits, Compared, advised_batch, best_of, compare, frugal_of
from minga.planner.device_memory import DeviceMemory, device_memory, estimated_passes
from minga.planner.devices import THIS, Precision, read_measurements
from minga.planner.explanation import binding_text, seconds_json
from minga.planner.forecast import Forecast, memory_of
from minga.planner.model_facts import (
    USUAL_RANK,
    FrozenBase,
    ModelFacts,
    OptimizerName,
    PlannedBits,
    model_facts,
    recipe_spec,
    tuned_facts,
)
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, Volunteers, resolve
from minga.planner.ways import SYNCHRONOUS, Gap, TrainingWay, compared_ways
from minga.recipes.registry import load_recipe
from minga.recipes.running.micro_batch import size_of_all

USUAL_TARGET_BATCH_SIZE, TUNED_BATCH_SIZE = 4096, 128
VERIFIED: Final = (
    "Members of this run check each other's work, which these figures leave out: a round takes up to twice as long, "
    "and all reduce equal parts."
)


def run_forecast(options: PlanCommand, context: Context) -> None:
    """Say what the swarm would reach, and what to look out for. Raises `ConfigurationError` for what makes no sense."""
    asked = _asked(options)
    context.output.say("Planning …")
    found = _Found(asked, compare(asked.setting, asked.ways, asked.auto))
    said = [f"This is for the last phase of the run: {asked.phases}."] if asked.phases else []
    said += [VERIFIED] if asked.is_verified else []
    context.output.show(Display([*_tables(found), *said, *_sentences(found)], _json(found)))


@dataclass(frozen=True)
class _Asked:
    """The setting with the first way, and all ways that are to be compared.

    `auto` is how the target batch size is chosen if the leaders do that; `phases` in words are those of a run that
    changes its strategy, of which the last one is planned.
    """

    setting: PlannedRun
    ways: Sequence[TrainingWay]
    auto: BatchLimits | None
    phases: str
    precision: str
    is_verified: bool


@dataclass(frozen=True)
class _Found:
    """What came out for each way."""

    asked: _Asked
    compared: Sequence[Compared]

    @cached_property
    def best(self) -> Compared:
        """The way that comes first to a loss."""
        return best_of(self.compared)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look out for."""
        return (*never(self.best), *warnings(self.best.forecast))


def _asked(options: PlanCommand) -> _Asked:
    name = str(options.model)
    whole = recipe_spec(name, options.tokens) if name.lower().endswith(".toml") else None
    spec = None if whole is None else whole.phases[-1]
    precision = cast("Precision", one_of("--precision", options.precision, get_args(Precision)))
    named = options.strategy or _of(spec, "training", "strategy")
    said_by = "--strategy" if options.strategy else f"{name}: training.strategy ="
    strategy = one_of(said_by, None if named == AUTO_STRATEGY else named, STRATEGIES.names())
    codec = _codec_choice(options.codec or (None if named == AUTO_STRATEGY else _of(spec, "averaging", "codec")))
    usual = OptimizerSection(name="adamw" if options.fine_tune else "lamb") if spec is None else spec.optimizer
    wanted = cast("OptimizerName", one_of("--optimizer", options.optimizer or usual.name, get_args(OptimizerName)))
    optimizer = usual if wanted == usual.name else OptimizerSection(name=wanted)
    auto = _limits_of(spec) if spec and options.target_batch is None else None
    batch = options.target_batch or (
        spec.training.batch_range[0] if spec else TUNED_BATCH_SIZE if options.fine_tune else USUAL_TARGET_BATCH_SIZE
    )
    classes = parse_peers(str(options.peers))
    if whole is not None and (size := size_of_all(load_recipe(whole, name))) is not None:
        classes = tuple(each if each.role == "auxiliary" else replace(each, micro_batch=size) for each in classes)
    model = planned_model(options)
    measured = read_measurements() if any(each.device == THIS for each in classes) else ()
    peers = resolve(classes, model, optimizer, batch, precision=precision, measured=measured)
    ways = compared_ways(strategy, codec)
    if spec is not None and strategy is not None:
        download = None if options.codec else spec.averaging.download_codec
        ways = [TrainingWay(StrategyChoice.of(spec, strategy), str(codec), download)]
    first = ways[0]
    phases = "" if whole is None or options.strategy else phases_in_words(whole)
    setting = PlannedRun(peers, model, optimizer, batch, first.strategy, first.codec)
    is_verified = whole is not None and whole.security.verification == "byzantine"
    return _Asked(setting, ways, auto, phases, options.precision, is_verified)


def planned_model(options: PlanCommand) -> ModelFacts:
    """What --model names, or with --fine-tune adapters on it."""
    name = str(options.model)
    if not options.fine_tune:
        return model_facts(name, options.tokens)
    bits = 4 if options.base_bits is None else options.base_bits
    if bits not in get_args(PlannedBits):
        raise ConfigurationError(f"--base-bits {bits}: it must be 16, 8 or 4")
    return tuned_facts(name, options.tokens, options.rank or USUAL_RANK, cast("PlannedBits", bits))


def _limits_of(spec: RunSpec) -> BatchLimits | None:
    """Between which target batch sizes the leaders choose; None if there is only one."""
    training = spec.training
    least, most = training.batch_range
    return None if training.target_batch_size != "auto" else BatchLimits(least, most, training.most_communication)


def _of(spec: RunSpec | None, section: str, key: str) -> str | None:
    return None if spec is None else str(getattr(getattr(spec, section), key))


def _codec_choice(text: str | None) -> str | None:
    try:
        return None if text is None else canonical_codec(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--codec {text!r}: {str(error).removeprefix('codec: ')}") from error


def one_of(option: str, value: str | None, allowed: Sequence[str]) -> str | None:
    """The `value` of an option. Raises `ConfigurationError` if it is none of those that are `allowed`."""
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{option} {value!r}: it must be one of {', '.join(allowed)}")
    return value


def _tables(found: _Found) -> Iterator[Table]:
    """Who does what and needs what; and the ways that were compared."""
    best = found.best.forecast
    yield _classes_table(best)
    if best.setting.model.base is not None:
        yield _bases_table(best)
    if len(found.compared) > 1:
        yield _ways_table(found)


def _classes_table(best: Forecast) -> Table:
    table = plain_table(
        "peers", "samples/s", "micro-batch", "sends a day", "receives a day", "device", "main memory", "to join"
    )
    for place, (each, figures) in enumerate(zip(best.setting.volunteers, best.classes, strict=True)):
        memory = memory_of(best, place)
        table.add_row(
            f"{each.peers.count} x {each.name}",
            f"{format_number(each.samples_per_s)} ({each.speed_origin})" if each.computes else "-",
            str(each.micro_batch) if each.computes else "-",
            format_size(figures.upload_bytes_per_day),
            format_size(figures.download_bytes_per_day),
            format_size(memory.device(each.micro_batch)) + ("" if memory.passes.is_known else " and activations"),
            format_size(memory.ram),
            format_duration(figures.sync_s),
        )
    return table


def _bases_table(best: Forecast) -> Table:
    """What devices hold with a base of so many bits, and the largest micro-batch for which there is memory."""
    setting = best.setting
    classes = [each for each in setting.volunteers if each.computes and each.memory_bytes is not None]
    table = plain_table("base in", "takes", *(f"one sample on {each.name}, most" for each in classes))
    for bits, found in _by_bits(best):
        fits = (found.largest_micro_batch(float(each.memory_bytes or 0)) for each in classes)
        needs = (f"{format_size(found.device(1))}, {most or 'does not fit'}" for most in fits)
        table.add_row(f"{bits} bits", format_size(found.base), *needs)
    return table


def _by_bits(best: Forecast) -> Iterator[tuple[int, DeviceMemory]]:
    setting, base = best.setting, best.setting.model.base
    if base is None:
        return
    for bits in get_args(PlannedBits):
        model = replace(setting.model, base=replace(base, bits=bits))
        passes = estimated_passes(model, half=True)
        yield bits, device_memory(model, setting.optimizer, setting.strategy, passes)


def _ways_table(found: _Found) -> Table:
    """Steps of local strategies are rounds, of as many batches as their name says."""
    table = plain_table("strategy, codec", "steps/h", "up a day", "down", "gap %", "to a loss", "")
    least_s = min((each.equal_s for each in found.compared if each.arrives), default=math.inf)
    for each in found.compared:
        up, down = each.traffic_per_day
        table.add_row(
            f"{each.way.name}, {each.way.codec}" + (f"/{each.way.download_codec}" if each.way.download_codec else ""),
            format_number(each.forecast.steps_per_hour),
            format_size(up),
            format_size(down),
            _gap_text(each.gap),
            _time_text(each, least_s),
            "best" if each is found.best else "",
        )
    return table


def _time_text(each: Compared, least_s: float) -> str:
    if not each.arrives:
        return "never"
    return f"{each.equal_s / least_s:.2f} x" if each.gap is not None and each.equal_s < math.inf else "?"


def _gap_text(gap: Gap | None) -> str:
    """The range, and of how many runs; one run has no range."""
    if gap is None:
        return "?"
    if gap.basis == "reference":
        return "0"
    star, runs = ("*" if gap.basis == "literature" else ""), (f" ({counted(gap.runs, 'run')})" if gap.runs else "")
    half = (gap.most - gap.least) / 2.0
    return f"{gap.percent:.2g}" + (f" ± {half:.2g}" if gap.runs != 1 else "") + star + runs


def _sentences(found: _Found) -> Iterator[str]:
    """What the tables do not say."""
    asked, chosen, compared = found.asked, found.best, found.compared
    best = chosen.forecast
    setting = best.setting
    if len(compared) > 1:
        yield (
            "Gap: how much higher the loss is after equally many samples than with synchronous float16, in so many "
            "runs of the benchmark of small models; * is from the literature. To a loss: the time, relative to the way "
            "that comes first to it; never: it did not come there in the benchmark. Best: the first in the table that "
            f"is at most {GOOD_ENOUGH:.0%} later."
        )
    yield (
        f"{format_number(best.steps_per_hour)} steps an hour of {best.batch:,} samples: a step takes "
        f"{format_duration(best.step_s)}, of which {format_duration(best.filling_s)} computing"
        + (" beside" if setting.strategy.facts.max_in_flight > 0 else ", then")
        + f" {format_duration(best.forming_s)} of round trips, a round of {format_duration(best.round_s)} "
        f"({format_size(best.vector_bytes)}) and {format_duration(best.update_s)} for the update. "
        f"The machines compute {best.utilisation:.0%} of the time for steps that count."
    )
    if setting.model.base is not None:
        yield _adapters_text(best, setting.model.base, compared)
    if asked.auto is not None and setting.target_batch_size > asked.auto.least:
        least = asked.auto.least
        yield f"That is the steady state: the leaders raise the target batch from {least:,} to it, step by step."
    yield f"The round waits for {binding_text(best.binding, names(setting.volunteers))}."
    yield (
        f"Best: {_settings_text(chosen)}. "
        f"Communication takes at most a fifth "
        f"of the time from a target batch of {advised_batch(best):,} on."
    )
    if (frugal := frugal_of(compared, chosen)) is not None:
        yield (
            f"With {chosen.traffic_per_day[0] / frugal.traffic_per_day[0]:.0f} times less to send, and "
            f"{frugal.equal_s / chosen.equal_s:.2f} times as long to a loss: {_settings_text(frugal)}."
        )
    estimated = sorted({str(each.peers.device) for each in setting.volunteers if each.speed_origin == "estimate"})
    if estimated:
        yield (
            f"Estimates, which may be off by a factor of two: the speed of {', '.join(estimated)} "
            f"({asked.precision} precision; "
            "`minga plan --measure` measures, samples_per_s= says)."
        )
    yield f"The model: {setting.model.parameters:,} parameters, {setting.model.origin}."
    for warning in found.warnings:
        yield f"! {warning[0].upper()}{warning[1:]}."


def _adapters_text(best: Forecast, base: FrozenBase, compared: Sequence[Compared]) -> str:
    """That what travels is small, and from which batch on every step can be shared."""
    model = best.setting.model
    words = (
        f"What travels are the adapters, {format_size(best.vector_bytes)} a round: the vector is small, "
        f"{model.parameters / base.parameters:.2%} of the {base.parameters / 1e9:.2f} billion parameters of the base, "
        "which each device has already."
    )
    synchronous = [each for each in compared if each.way.strategy == SYNCHRONOUS and each.gap and each.arrives]
    if synchronous:
        shared = min(synchronous, key=lambda each: each.equal_s)
        words += (
            f" With {shared.way.codec} every step can be shared (synchronous) from a target batch of "
            f"{advised_batch(shared.forecast):,} on: communication then takes at most a fifth of the time."
        )
    return f"{words} Gaps were measured where whole models are trained, and are not known for adapters."


def _settings_text(chosen: Compared) -> str:
    """What the run spec has to say for this way."""
    way = chosen.way
    words = f'strategy = "{way.strategy.name}", codec = "{way.codec}"'
    if way.download_codec is not None:
        words += f', download_codec = "{way.download_codec}"'
    if way.batches > 1:
        words += f", target_batch_size = {chosen.forecast.setting.target_batch_size}"
    if way.strategy.table:
        table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in way.strategy.table.items())
        words += f", [strategy.{way.strategy.name}] {table}"
    return words


def names(volunteers: Sequence[Volunteers]) -> list[str]:
    """A name for each single peer."""
    return [
        each.name if each.peers.count == 1 else f"peer {number} ({each.name})"
        for each in volunteers
        for number in range(1, each.peers.count + 1)
    ]


def _json(found: _Found) -> dict[str, Any]:
    """The same as JSON values; times that are infinite are null."""
    best = found.best.forecast
    setting = best.setting
    return {
        "phases": found.asked.phases,
        "steps_per_hour": round(best.steps_per_hour, 4),
        "utilisation": round(best.utilisation, 4),
        "step_s": seconds_json(best.step_s),
        "filling_s": seconds_json(best.filling_s),
        "forming_s": seconds_json(best.forming_s),
        "round_s": seconds_json(best.round_s),
        "update_s": seconds_json(best.update_s),
        "batch": best.batch,
        "vector_bytes": best.vector_bytes,
        "strategy": setting.strategy.name,
        "codec": setting.codec,
        "target_batch_size": setting.target_batch_size,
        "advised_target_batch_size": advised_batch(best),
        "sync_s": seconds_json(max(each.sync_s for each in best.classes)),
        "traffic": {
            each.name: {
                "upload_bytes_per_day": round(figures.upload_bytes_per_day),
                "download_bytes_per_day": round(figures.download_bytes_per_day),
            }
            for each, figures in zip(setting.volunteers, best.classes, strict=True)
        },
        "memory_of_base_bits": {
            str(bits): {"base": held.base, "device_of_one": held.device(1)} for bits, held in _by_bits(best)
        },
        "memory_bytes": {each.name: _memory(best, place) for place, each in enumerate(setting.volunteers)},
        "classes": [_class_json(best, place) for place in range(len(setting.volunteers))],
        "ways": [_way_json(each) for each in found.compared],
        "warnings": list(found.warnings),
    }


def _memory(best: Forecast, place: int) -> dict[str, int | None]:
    found, micro_batch = memory_of(best, place), best.setting.volunteers[place].micro_batch
    names = ("base", "parameters", "gradients", "moments", "scratch", "sums", "averaging", "wire", "state_copy")
    return {
        **{name: getattr(found, name) for name in names},
        "pass": round(found.of_pass(micro_batch)) if found.passes.is_known else None,
        "device": found.device(micro_batch),
        "ram": found.ram,
    }


def _class_json(best: Forecast, place: int) -> dict[str, Any]:
    each, figures = best.setting.volunteers[place], best.classes[place]
    return {
        "name": each.name,
        "count": each.peers.count,
        "role": each.peers.role,
        "samples_per_s": round(each.samples_per_s, 4),
        "speed_origin": each.speed_origin,
        "micro_batch": each.micro_batch if each.computes else None,
        "resting": figures.resting,
        "sync_s": seconds_json(figures.sync_s),
        "upload_bytes": round(figures.upload_bytes),
        "download_bytes": round(figures.download_bytes),
    }


def _way_json(each: Compared) -> dict[str, Any]:
    found, gap, (up, down) = each.forecast, each.gap, each.traffic_per_day
    return {
        "strategy": each.way.strategy.name,
        "settings": dict(each.way.strategy.table),
        "codec": each.way.codec,
        "download_codec": each.way.download_codec,
        "target_batch_size": found.setting.target_batch_size,
        "batches_of_a_round": each.way.batches,
        "round_s": seconds_json(found.round_s),
        "step_s": seconds_json(found.step_s),
        "steps_per_hour": round(found.steps_per_hour, 4),
        "samples_per_s": round(1.0 / each.sample_s, 4),
        "utilisation": round(found.utilisation, 4),
        "upload_bytes_per_day": round(up),
        "download_bytes_per_day": round(down),
        "loss_gap_percent": None if gap is None else [round(gap.least, 3), round(gap.most, 3)],
        "loss_gap_basis": None if gap is None else gap.basis,
        "loss_gap_runs": None if gap is None else gap.runs,
        "arrives": each.arrives,
        "extra_samples": None if gap is None else round(gap.extra_samples, 4),
        "equal_loss_samples_per_s": None if gap is None or not gap.arrives else round(1.0 / each.equal_s, 4),
    }
