"""`minga plan --memory` and `--measure`: whether a model fits into a device, and how fast this machine trains."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import torch

from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice, largest_strategy
from minga.cli.commands import PlanCommand
from minga.cli.planning.forecast import one_of, planned_model
from minga.cli.terminal.context import Context, apply_threads
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import format_duration, format_number, format_size, parse_size
from minga.planner.device_memory import (
    FILLED,
    HOST_BYTES_PER_S,
    DeviceMemory,
    counted_passes,
    device_memory,
    estimated_passes,
)
from minga.planner.devices import Measurement, Precision, keep_measurements
from minga.planner.model_facts import ModelFacts, facts_of_recipe, named_spec, recipe_spec
from minga.recipes.registry import USUAL_MODEL, load_recipe
from minga.recipes.running.devices import choose_device, devices, hardware
from minga.recipes.running.micro_batch import measure_speed
from minga.recipes.running.precision import choose_precision


def run_memory(options: PlanCommand, context: Context) -> None:
    """Say what a device and its machine need, and the largest micro-batch. Raises `ConfigurationError` for a model or
    setting that does not exist.
    """
    memory_bytes = parse_size(str(options.memory), "--memory")
    context.output.say("Counting …")
    model, found, of_run = _count(options)
    largest = found.largest_micro_batch(memory_bytes)
    words = list(_sentences(model, found, memory_bytes, largest))
    fits = largest is None or largest >= (of_run or 1)
    if of_run is not None:
        verb = "fit" if fits else "do not fit"
        words.append(f"All peers of such a run take micro-batches of {of_run:,}, which {verb}.")
    values = {"fits": fits, "micro_batch_of_run": of_run, **_json(model, found, memory_bytes, largest)}
    context.output.show(Display([_table(found, of_run or largest or 1), *words], values))


def _count(options: PlanCommand) -> tuple[ModelFacts, DeviceMemory, int | None]:
    """The model, what it needs, and the micro-batch of all peers where samples are coupled. `precision` "auto" is half,
    as accelerators compute that are fast in it.
    """
    one_of("--precision", options.precision, get_args(Precision))
    name, half = str(options.model), options.precision != "single"
    spec = None if options.fine_tune else named_spec(name, options.tokens)
    usual = RunSpec.from_mapping({"name": "plan", "model": {"recipe": "custom"}}) if spec is None else spec
    changes = {"name": options.optimizer or ("adamw" if options.fine_tune else None), "state_bits": options.state_bits}
    settings = {**usual.optimizer.model_dump(mode="json"), **{k: v for k, v in changes.items() if v is not None}}
    optimizer = usual.from_mapping({"name": "plan", "model": {"recipe": "custom"}, "optimizer": settings}).optimizer
    strategy = largest_strategy(usual) if options.strategy is None else StrategyChoice.of(usual, options.strategy)
    one_of("--strategy", strategy.name, STRATEGIES.names())
    if spec is None:
        model = planned_model(options)
        if options.checkpoint_activations:
            raise ConfigurationError("--checkpoint-activations: only a recipe says what a model keeps then")
        passes = estimated_passes(model, half=half)
    else:
        model = facts_of_recipe(spec, name)
        passes = counted_passes(
            spec,
            dtype=torch.bfloat16 if half else None,
            checkpoints_activations=options.checkpoint_activations,
        )
    of_run = None if spec is None else load_recipe(spec).fixed_micro_batch_size
    return model, device_memory(model, optimizer, strategy, passes, offload=options.offload), of_run


def _table(found: DeviceMemory, micro_batch: int) -> Any:
    table = plain_table("what", "on the device", "in RAM", left=("what",))
    update, averaging = found.gradients + found.scratch, format_size(found.averaging)
    if found.base:
        table.add_row("frozen base", format_size(found.base), "-")
    table.add_row("parameters", format_size(found.parameters), format_size(found.parameters) if found.offload else "-")
    table.add_row("moments of the optimizer", *_sides(found.moments, away=found.offload))
    table.add_row(f"a pass over {micro_batch:,}", format_size(found.of_pass(micro_batch)), "-")
    table.add_row("sum and mean of the gradients", format_size(found.sums) if found.sums else "-", averaging)
    table.add_row("or the update, if larger", *_sides(update, away=found.offload))
    table.add_row("in all", format_size(found.device(micro_batch)), format_size(found.ram))
    return table


def _sides(size: int, *, away: bool) -> tuple[str, str]:
    return ("-", format_size(size)) if away else (format_size(size), "-")


def _sentences(model: ModelFacts, found: DeviceMemory, memory_bytes: float, largest: int | None) -> Iterator[str]:
    yield f"{model.name}: {model.parameters:,} parameters; {model.origin}."
    if largest is None:
        yield "What activations take is not known, since no recipe says how the model computes."
    elif largest == 0:
        yield f"Not even one sample fits into {FILLED:.0%} of {format_size(memory_bytes)}."
    else:
        yield f"The largest micro-batch within {FILLED:.0%} of {format_size(memory_bytes)}: {largest:,} samples."
    seconds = found.transfer_per_step / HOST_BYTES_PER_S
    what, back = ("A step of one micro-batch", "parameters") if found.offload else ("A step", "the mean gradient")
    yield (
        f"{what} moves {format_size(found.transfer_per_step)} between an accelerator and RAM, the "
        f"gradient and {back}: {format_duration(seconds)} at {HOST_BYTES_PER_S / 1e9:.0f} GB/s."
    )
    yield "The program (about 0.5 GB in RAM) and the data come on top."
    if found.pinned:
        yield f"With CUDA up to {format_size(found.pinned)} more of RAM: what it writes to comes in powers of two."


def _json(model: ModelFacts, found: DeviceMemory, memory_bytes: float, largest: int | None) -> dict[str, Any]:
    return {
        "model": model.name,
        "parameters": model.parameters,
        "memory_bytes": round(memory_bytes),
        "largest_micro_batch": largest,
        "device_bytes": found.device(largest or 1),
        "device_bytes_of_one": found.device(1),
        "base_bytes": found.base,
        "parameter_bytes": found.parameters,
        "moment_bytes": found.moments,
        "pass_bytes": round(found.of_pass(largest or 1)),
        "sum_bytes": found.sums,
        "update_bytes": found.gradients + found.scratch,
        "ram_bytes": found.ram,
        "ram_bytes_with_cuda": found.ram + found.pinned,
        "offload": found.offload,
        "transfer_bytes_per_step": found.transfer_per_step,
        "transfer_s_per_step": round(found.transfer_per_step / HOST_BYTES_PER_S, 6),
    }


def run_measure(options: PlanCommand, context: Context) -> None:
    """Measure a model on the wanted devices (all of them by default) and keep the result.

    Raises `ConfigurationError` for models without a recipe and devices that are not there.
    """
    model, tokens = options.model or USUAL_MODEL, options.tokens
    spec = recipe_spec(model, tokens)

    apply_threads(options.threads)
    chosen = [choose_device(name) for name in options.device or devices()]
    recipe = load_recipe(spec, model)
    facts = facts_of_recipe(spec, model)
    found: list[Measurement] = []
    for device in chosen:
        context.output.say(f"Measuring {facts.name} with {facts.tokens} tokens on {device} …")
        precision = choose_precision("auto", device, spec)
        speed = measure_speed(recipe, spec, device, options.seconds, precision)
        one = Measurement(
            device=str(device),
            model=facts.name,
            parameters=sum(facts.tensors),
            operations=facts.operations,
            tokens=facts.tokens,
            micro_batch=speed.micro_batch,
            samples_per_s=speed.samples_per_s,
            update_s=speed.update_s,
            peak_bytes=speed.peak_bytes,
            hardware=hardware(device),
        )
        found.append(one)
        context.output.event("device.measured", **msgspec.to_builtins(one))
        context.output.say(_line(one))
    path = keep_measurements(found)
    asked = shlex.quote(model) + ("" if tokens is None else f" --tokens {tokens}")
    context.output.say(f'Kept in {path}; `minga plan --model {asked} --peers "(this, 100Mbit); …"` uses it.')
    context.output.summary(ok=True, devices=[msgspec.to_builtins(each) for each in found], path=str(path))


def _line(one: Measurement) -> str:
    memory = f", {format_size(one.peak_bytes)} at most" if one.peak_bytes is not None else ""
    return (
        f"  {one.hardware}: {format_number(one.samples_per_s)} samples/s in micro-batches of "
        f"{one.micro_batch}{memory}; an update takes {format_duration(one.update_s)}"
    )
