"""`minga bench-device`: how fast this machine trains, measured and kept for `minga plan`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from minga.cli.terminal.context import Context, collect_again
from minga.core.units import format_duration, format_number, format_size

if TYPE_CHECKING:
    from minga.planner.devices import Measurement


def run_bench_device(
    model: str, wanted: Sequence[str] | None, tokens: int | None, seconds: float, threads: int | None, context: Context
) -> None:
    """Measure `model` on the wanted devices (all of them by default) and keep the result.

    Raises `ConfigurationError` for models without a recipe and devices that are not there.
    """
    from minga.planner.devices import Measurement, keep_measurements
    from minga.planner.model_facts import recipe_spec

    spec = recipe_spec(model, tokens)
    import torch

    from minga.recipes import load_recipe
    from minga.recipes.running.device_speed import devices, hardware, measure_speed
    from minga.recipes.running.precision import choose_precision
    from minga.recipes.running.run import choose_device

    collect_again()
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = [choose_device(name) for name in wanted or devices()]
    recipe = load_recipe(spec, model)
    facts = recipe.facts()
    found: list[Measurement] = []
    for device in chosen:
        context.output.say(f"Measuring {facts.name} with {facts.tokens} tokens on {device} …")
        precision = choose_precision("auto", device, spec)
        speed = measure_speed(recipe, spec.optimizer, device, seconds, precision)
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
