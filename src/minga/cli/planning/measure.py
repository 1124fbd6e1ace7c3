"""`minga plan --measure`: how fast this machine trains, measured and kept for `minga plan`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from minga.cli.commands import PlanCommand
from minga.cli.terminal.context import Context, apply_threads
from minga.core.units import format_duration, format_number, format_size
from minga.recipes.registry import USUAL_MODEL

if TYPE_CHECKING:
    from minga.planner.devices import Measurement


def run_measure(options: PlanCommand, context: Context) -> None:
    """Measure a model on the wanted devices (all of them by default) and keep the result.

    Raises `ConfigurationError` for models without a recipe and devices that are not there.
    """
    from minga.planner.devices import Measurement, keep_measurements
    from minga.planner.model_facts import recipe_spec

    model, tokens = options.model or USUAL_MODEL, options.tokens
    spec = recipe_spec(model, tokens)
    from minga.recipes import load_recipe
    from minga.recipes.running.devices import choose_device, devices, hardware
    from minga.recipes.running.micro_batch import measure_speed
    from minga.recipes.running.precision import choose_precision

    apply_threads(options.threads)
    chosen = [choose_device(name) for name in options.device or devices()]
    recipe = load_recipe(spec, model)
    facts = recipe.facts()
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
