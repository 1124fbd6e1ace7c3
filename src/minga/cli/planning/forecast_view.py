"""How forecasts look: tables and lines for people, values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from minga.cli.terminal.output import plain_table
from minga.core.units import format_duration, format_size
from minga.simulation.advice.advised_batch import advised_batch
from minga.simulation.forecast.forecast import Forecast
from minga.simulation.forecast.memory import footprint
from minga.simulation.forecast.plan_words import binding_text, seconds_json
from minga.simulation.forecast.planned_run import Volunteers


def forecast_table(best: Forecast, forecasts: Sequence[Forecast]) -> Iterator[Table]:
    """Who does what and needs what; and the ways that were compared."""
    yield _classes_table(best)
    if len(forecasts) > 1:
        yield _ways_table(best, forecasts)


def _classes_table(best: Forecast) -> Table:
    table = plain_table(
        "peers", "samples/s", "micro-batch", "sends a day", "receives a day", "device", "main memory", "to join"
    )
    for place, (each, figures) in enumerate(zip(best.setting.volunteers, best.classes, strict=True)):
        memory = footprint(best, place)
        table.add_row(
            f"{each.peers.count} x {each.name}",
            f"{each.samples_per_s:.3g} ({each.speed_origin})" if each.computes else "-",
            str(each.micro_batch) if each.computes else "-",
            format_size(figures.upload_bytes_per_day),
            format_size(figures.download_bytes_per_day),
            format_size(memory.device) + (" and activations" if memory.activations is None else ""),
            format_size(memory.main),
            format_duration(figures.sync_s),
        )
    return table


def _ways_table(best: Forecast, forecasts: Sequence[Forecast]) -> Table:
    table = plain_table("strategy", "codec", "round", "step", "steps an hour", "utilisation", "")
    for each in forecasts:
        table.add_row(
            each.setting.strategy.name,
            each.setting.codec,
            format_duration(each.round_s),
            format_duration(each.step_s),
            f"{each.steps_per_hour:.3g}",
            f"{each.utilisation:.0%}",
            "best" if each is best else "",
        )
    return table


def forecast_text(best: Forecast, warnings: Sequence[str], precision: str) -> Iterator[str]:
    """What the tables do not say, in sentences."""
    setting = best.setting
    yield (
        f"{best.steps_per_hour:.3g} steps an hour of {best.batch:,} samples: a step takes "
        f"{format_duration(best.step_s)}, of which {format_duration(best.filling_s)} computing"
        + (" beside" if setting.strategy.facts.max_in_flight > 0 else ", then")
        + f" {format_duration(best.forming_s)} of round trips, a round of {format_duration(best.round_s)} "
        f"({format_size(best.vector_bytes)}) and {format_duration(best.update_s)} for the update. "
        f"The machines compute {best.utilisation:.0%} of the time for steps that count."
    )
    yield f"The round waits for {binding_text(best.binding, names(setting.volunteers))}."
    yield (
        f'Best: strategy = "{setting.strategy.name}", codec = "{setting.codec}". Communication takes at most a fifth '
        f"of the time from a target batch of {advised_batch(best):,} on."
    )
    estimated = sorted({str(each.peers.device) for each in setting.volunteers if each.speed_origin == "estimate"})
    if estimated:
        yield (
            f"Estimates, which may be off by a factor of two: the speed of {', '.join(estimated)} "
            f"({precision} precision; "
            "`minga bench-device` measures, samples_per_s= says)."
        )
    yield f"The model: {setting.model.parameters:,} parameters, {setting.model.origin}."
    for warning in warnings:
        yield f"! {warning[0].upper()}{warning[1:]}."


def names(volunteers: Sequence[Volunteers]) -> list[str]:
    """A name for each single peer."""
    return [
        each.name if each.peers.count == 1 else f"{each.name} {number}"
        for each in volunteers
        for number in range(1, each.peers.count + 1)
    ]


def forecast_json(best: Forecast, forecasts: Sequence[Forecast], warnings: Sequence[str]) -> dict[str, Any]:
    """The same as JSON values; times that are infinite are null."""
    setting = best.setting
    return {
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
        "memory_bytes": {each.name: _memory(best, place) for place, each in enumerate(setting.volunteers)},
        "classes": [_class_json(best, place) for place in range(len(setting.volunteers))],
        "ways": [_way_json(each) for each in forecasts],
        "warnings": list(warnings),
    }


def _memory(best: Forecast, place: int) -> dict[str, int | None]:
    found = footprint(best, place)
    return {**asdict(found), "device": found.device, "main": found.main}


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


def _way_json(each: Forecast) -> dict[str, Any]:
    return {
        "strategy": each.setting.strategy.name,
        "codec": each.setting.codec,
        "round_s": seconds_json(each.round_s),
        "step_s": seconds_json(each.step_s),
        "steps_per_hour": round(each.steps_per_hour, 4),
        "utilisation": round(each.utilisation, 4),
    }
