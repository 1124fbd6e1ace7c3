"""How simulations look: a line while they run, a summary, a table of a sweep, values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from minga.cli.terminal.output import plain_table
from minga.core.units import counted, format_duration, format_number, format_size
from minga.simulation.outcome import Outcome
from minga.simulation.scenario.scenario import Change
from minga.simulation.scenario.sections import StopTable
from minga.simulation.timeline import PHASES, StepRecord, Timeline

BAR_CHARACTERS = 40
MARKS = {"compute": "█", "wait": "░", "communicate": "▓", "apply": "▪"}
ENDS = {
    "steps": "it took the steps that were asked for",
    "time": "its virtual time was up",
    "loss": "the loss was reached",
    "stopped": "the organisers ended the run",
    "interrupt": "interrupted",
    "nobody is left": "nobody was left",
}
MAX_BINDINGS = 5
MAX_BANS = 20


def scenario_table(scenarios: Mapping[str, str]) -> Table:
    """Names of the shipped scenarios and what they model."""
    table = plain_table("scenario", "what it models", left=("what it models",), wraps="what it models")
    for name, text in scenarios.items():
        table.add_row(name, escape(text))
    return table


def progress_line(timeline: Timeline, stop: StopTable, virtual_s: float) -> str:
    """How far a running simulation is."""
    of = f" of {stop.steps}" if stop.steps is not None else ""
    return (
        f"step {timeline.last_step}{of} · {format_duration(virtual_s)} of virtual time · "
        f"{counted(timeline.alive[-1][1], 'peer')} there"
    )


def step_json(step: StepRecord) -> dict[str, Any]:
    """One step as JSON values."""
    return {
        "step": step.number,
        "applied_s": round(step.applied_s, 3),
        "took_s": round(step.took_s, 3),
        "leader": step.client or step.leader,
        "members": step.members,
        "samples": step.samples,
        "alive": step.alive,
        "current": step.current,
        "contributors": step.contributors,
        "newcomers": step.newcomers,
        "missing": step.missing,
        "phases_s": {phase: round(seconds, 3) for phase, seconds in step.mean_phases_s.items()},
        "round_s": round(step.round_s, 3),
        "predicted_s": step.predicted_s,
        "bound_by": step.bound_by,
        "loss": step.loss,
        "banned": [each["other"] for each in step.incidents if each["kind"] == "secure.banned"],
    }


def summary_text(outcome: Outcome) -> Iterator[str]:
    """What came of a simulation, in sentences."""
    values = outcome.summary()
    yield (
        f"{counted(values['steps'], 'step')} in {format_duration(outcome.virtual_s)} of virtual time; "
        f"{ENDS[outcome.ended_by]}. It took {format_duration(outcome.wall_s)} of real time."
    )
    yield f"{counted(values['peers'], 'peer')} took part, at most {values['most_alive']} at a time."
    if not outcome.steps:
        yield "Nobody finished a step."
        return
    if outcome.steps_per_hour is not None:
        yield (
            f"{outcome.steps_per_hour:.4g} steps an hour; trainers computed for {_percent(outcome.utilisation)} of "
            f"their time in the run."
        )
    yield from _split_text(values["split"]) if values["split"] else _steps_text(outcome, values)
    yield from _orders_text(outcome)
    yield from _attack_text(outcome, values["attack"])
    incidents = ", ".join(f"{count} {kind}" for kind, count in values["incidents"].items())
    yield f"Faults and recoveries: {incidents or 'none'}."
    up, down = values["bytes_sent_per_peer"], values["bytes_received_per_peer"]
    yield (
        f"A peer sent {format_size(up['mean'])} on average, {format_size(up['most'])} at most, and received "
        f"{format_size(down['mean'])}, at most {format_size(down['most'])}."
    )
    if values["loss"] is not None:
        yield f"Held-out loss: {outcome.losses()[0][1]:.4f} after the first step, {values['loss']:.4f} at the end."
    yield f"Log: {counted(values['entries'], 'entry', 'entries')}, digest {values['log_digest'][:16]}…"


def _orders_text(outcome: Outcome) -> Iterator[str]:
    """What the organisers did, and whether the run is one history after all."""
    if outcome.timeline.orders:
        done = ", ".join(f"{count} {order}" for order, count in outcome.timeline.orders.items())
        yield f"The organisers' acts: {done}."
    if (found := outcome.agreement) is not None:
        states = "equal states" if found.states == 1 else f"{found.states} different states"
        yield (
            f"At the end {counted(found.peers, 'peer is', 'peers are')} at the last step, with {states}; "
            f"they {'know the same orders' if found.has_same_orders else 'do not know the same orders'}. "
            f"{'Each step was taken once' if found.has_all_steps else 'Steps are missing, or were taken twice'}."
        )


def _attack_text(outcome: Outcome, attack: Mapping[str, Any] | None) -> Iterator[str]:
    """Who attacked, and who was banned when and why."""
    if attack is None:
        return
    if attack["attackers"]:
        peers = counted(len(outcome.timeline.peers), "peer")
        yield (
            f"{attack['attackers']} of {peers} attacked ({', '.join(attack['behaviours'])}) "
            f"from step {attack['from_step'] + 1} on; {attack['attackers_banned']} of them were banned, and "
            f"{attack['honest_banned']} of the others."
        )
    bans = [f"{name} in step {ban['step']} ({ban['reason']})" for name, ban in attack["bans"].items()]
    if bans:
        more = f" and {len(bans) - MAX_BANS} more" if len(bans) > MAX_BANS else ""
        yield f"Banned: {', '.join(bans[:MAX_BANS])}{more}."


def _split_text(split: Mapping[str, Any]) -> Iterator[str]:
    """What became of the batches of a model that is cut."""
    rate, batches = split["batches_per_second"], counted(split["applied"], "batch", "batches")
    yield (
        f"{counted(split['clients'], 'client')} sent {batches} that the server applied"
        + ("" if rate is None else f", {format_number(rate)} a second")
        + f". Of {split['unanswered']} of them the client was gone when the answer was there, and "
        f"{counted(split['given_up'], 'batch was', 'batches were')} given up."
    )
    twice, unapplied = counted(split["applied_twice"], "batch was", "batches were"), split["answered_unapplied"]
    yield (
        "Each batch was applied exactly once."
        if split["exactly_once"]
        else f"NOT exactly once: {twice} applied twice, {unapplied} answered and not applied."
    )


def _steps_text(outcome: Outcome, values: Mapping[str, Any]) -> Iterator[str]:
    phases = outcome.phases_s
    yield f"A step: {bar(phases)} " + ", ".join(f"{phase} {format_duration(phases[phase])}" for phase in PHASES) + "."
    if outcome.participation is not None:
        split = counted(outcome.split_steps, "step was", "steps were")
        yield (
            f"Of the trainers that were alive and up to date {_percent(outcome.participation)} contributed to a round, "
            f"{_percent(outcome.least_participation)} in the worst step; {split} split."
        )
    bindings = list(values["bound_by"].items())
    if bindings:
        most = ", ".join(f"{what} ({counted(count, 'step')})" for what, count in bindings[:MAX_BINDINGS])
        yield f"What bound the steps: {most}{' and others' if len(bindings) > MAX_BINDINGS else ''}."


def bar(phases_s: Mapping[str, float]) -> str:
    """The phases of a step as a bar: █ compute, ░ wait, ▓ communicate, ▪ apply."""
    total = sum(phases_s.values())
    if total <= 0:
        return "·" * BAR_CHARACTERS
    text, end_s = "", 0.0
    for phase in PHASES:
        end_s += phases_s[phase]
        text += MARKS[phase] * (round(BAR_CHARACTERS * end_s / total) - len(text))
    return text


def sweep_table(runs: Sequence[tuple[list[Change], Outcome]]) -> Table:
    """One row for each run of a sweep."""
    keys = [escape(key) for key, _ in runs[0][0]] if runs else []
    table = plain_table(*keys, "steps", "steps/h", *PHASES, "computing", "took part", "loss", left=keys)
    for point, outcome in runs:
        phases, losses = outcome.phases_s, outcome.losses()
        table.add_row(
            *(escape(value) for _, value in point),
            str(outcome.timeline.last_step),
            "-" if outcome.steps_per_hour is None else f"{outcome.steps_per_hour:.4g}",
            *(format_duration(phases[phase]) for phase in PHASES),
            _percent(outcome.utilisation),
            _percent(outcome.participation),
            f"{losses[-1][1]:.4f}" if losses else "-",
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
