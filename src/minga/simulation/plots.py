"""Pictures of a simulation: loss, attacks, the anatomy of its steps, who was there, and what was sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from minga.core.png import blank, write
from minga.simulation.attack_plot import Curve, draw_attack
from minga.simulation.outcome import Outcome
from minga.simulation.timeline import PHASES

COLOURS: Final = {"compute": "tab:green", "wait": "lightgray", "communicate": "tab:blue", "apply": "tab:orange"}
SIZE_INCHES: Final = (9.0, 4.5)


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw what there is to draw into PNG files in `folder`. Raises `StorageError` if the disk refuses."""
    figures: dict[str, Callable[[Any, Outcome], None]] = {
        "rounds": _anatomy,
        "peers": _peers,
        "traffic": _traffic,
    }
    if outcome.losses():
        figures = {"loss": _loss, **figures}
        if outcome.onset is not None:
            figures = {"attack": _attack, **figures}
    return [_save(outcome, drawing, folder / f"{name}.png") for name, drawing in figures.items()]


def _save(outcome: Outcome, drawing: Callable[[Any, Outcome], None], path: Path) -> Path:
    figure = blank(*SIZE_INCHES)
    axes = figure.subplots()
    drawing(axes, outcome)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    name = f"{outcome.scenario.name}, seed {outcome.scenario.seed}"
    figure.suptitle(name.replace("$", r"\$"))
    write(figure, path)
    return path


def _loss(axes: Any, outcome: Outcome) -> None:
    unit_s, unit = _unit(outcome)
    losses = outcome.losses()
    axes.plot([time / unit_s for time, _ in losses], [loss for _, loss in losses], label="held out")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="loss")


def _attack(axes: Any, outcome: Outcome) -> None:
    values = [step.loss for step in outcome.steps if step.loss is not None]
    bans = [ban.step for ban in outcome.ledger.bans.values()]
    words = ", ".join(sorted({behaviour for behaviour, _ in outcome.ledger.attacks.values()}))
    curve = Curve(values, bans, outcome.steps[0].number)
    draw_attack(axes, {f"loss under attack ({words})": curve}, outcome.onset or 0, "held-out loss")
    members = axes.twinx()
    members.step([step.number for step in outcome.steps], [step.members for step in outcome.steps], where="mid",
                 color="tab:gray", alpha=0.6)  # fmt: skip
    members.set(ylabel="members (gray)", ylim=(0, None))


def _anatomy(axes: Any, outcome: Outcome) -> None:
    steps = [step for step in outcome.steps if step.measured]
    numbers = [step.number for step in steps]
    bottom = [0.0] * len(steps)
    for phase in PHASES:
        heights = [step.mean_phases_s[phase] for step in steps]
        axes.bar(numbers, heights, bottom=bottom, width=1.0, color=COLOURS[phase], label=phase)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="step", ylabel="seconds of a member's time")


def _peers(axes: Any, outcome: Outcome) -> None:
    unit_s, unit = _unit(outcome)
    alive = [*outcome.ledger.alive, (outcome.virtual_s, outcome.ledger.alive[-1][1])]
    axes.step([time / unit_s for time, _ in alive], [count for _, count in alive], where="post", label="there")
    steps = outcome.steps
    times = [step.applied_s / unit_s for step in steps]
    axes.plot(times, [step.current for step in steps], ".", label="trainers up to date")
    axes.plot(times, [step.contributors for step in steps], "x", label="contributors")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="peers", ylim=(0, None))


def _traffic(axes: Any, outcome: Outcome) -> None:
    """Mean rate at which all peers together sent during each step, from samples of their counters."""
    unit_s, unit = _unit(outcome)
    sampled = [(0.0, 0), *((step.applied_s, step.sent_bytes) for step in outcome.steps)]
    times, rates = [0.0], [0.0]
    for (before_s, before), (after_s, after) in itertools.pairwise(sampled):
        if after_s > before_s:
            times.append(after_s / unit_s)
            rates.append((after - before) / (after_s - before_s) / 1e6)
    axes.step(times, rates, where="pre", label="all traffic")
    axes.set(xlabel=f"virtual time ({unit})", ylabel="sent by all peers (MB/s)", ylim=(0, None))


def _unit(outcome: Outcome) -> tuple[float, str]:
    return (60.0, "minutes") if outcome.virtual_s < 7200 else (3600.0, "hours")
