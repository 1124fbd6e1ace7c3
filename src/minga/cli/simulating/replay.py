"""`minga sim --replay`: the log of a simulation, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.markup import escape

from minga.cli.commands import SimCommand
from minga.cli.simulating.sim_view import bar, step_json
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.units import counted, format_duration
from minga.simulation.event_log import Entry, Log
from minga.simulation.timeline import PHASES, StepRecord, Timeline

MAX_INCIDENTS = 12
MAX_NAMES = 10


def run_replay(options: SimCommand, context: Context) -> None:
    """Show each step of a log, or one of them with everything that happened in it."""
    path, number = Path(str(options.replay)), options.step
    log, timeline = Log(path), Timeline()
    try:
        for entry in log:
            timeline.add(entry)
        steps = [step for step in timeline.finished() if number in (None, step.number)]
        lines = list(_lines(log, timeline, steps, whole=number is not None))
        events = [{**step_json(step), "incidents": step.incidents} for step in steps]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(f"{path}: not as `minga sim` writes it, something was changed: {error!r}") from error
    if not steps and number is not None:
        raise ConfigurationError(f"{path}: has no step {number}; there are steps 1 to {timeline.last_step}")
    for event in events:
        context.output.event("step", **event)
    _show(lines, context)
    context.output.summary(
        ok=True,
        steps=timeline.last_step,
        peers=len(timeline.peers),
        virtual_s=timeline.now_s,
        is_complete=log.is_complete,
    )


def _lines(log: Log, timeline: Timeline, steps: list[StepRecord], *, whole: bool) -> Iterator[str]:
    scenario = log.head.get("scenario")
    name = scenario.get("name", "") if isinstance(scenario, dict) else ""
    yield f"{name}: {counted(timeline.last_step, 'step')}, {counted(len(timeline.peers), 'peer')}"
    if not log.is_complete:
        yield "The log was cut off or changed: its digest is missing or wrong."
    for step in steps:
        yield from _step_text(step, whole=whole)


def _show(lines: Sequence[str], context: Context) -> None:
    """All at once, in a pager where somebody sits; without letters that would command a terminal, or are none."""
    lines = [
        "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line) for line in lines
    ]
    if context.output.interactive:
        with context.output.console.pager(styles=True):
            for line in lines:
                context.output.say(escape(line))
    else:
        for line in lines:
            context.output.say(escape(line))


def _step_text(step: StepRecord, *, whole: bool) -> Iterator[str]:
    """A step in a few lines; with `whole` nothing that happened in it is left out."""
    yield ""
    took = f" after {format_duration(step.took_s)}" if step.number > 1 else ""
    members = counted(step.members, "member")
    whose = f"a batch of {step.client}" if step.client else f"led by {step.leader or 'nobody'}: {members}"
    yield (
        f"Step {step.number} at {format_duration(step.applied_s)}{took}, {whose}, {counted(step.samples, 'sample')}"
        + (f", loss {step.loss:.4f}" if step.loss is not None else "")
    )
    if step.measured:
        phases = step.mean_phases_s
        yield f"  {bar(phases)}  " + ", ".join(f"{phase} {format_duration(phases[phase])}" for phase in PHASES)
        predicted = "" if step.predicted_s is None else f", {format_duration(step.predicted_s)} by the plan"
        yield f"  bound by: {step.bound_by}; the round took {format_duration(step.round_s)}{predicted}"
    if not step.client:
        current = counted(step.current, "trainer")
        yield f"  {counted(step.alive, 'peer')} there; {step.contributors} of {current} up to date contributed"
    if step.missing:
        yield f"  missing: {_names(step.missing)}"
    if step.newcomers:
        yield f"  newcomers without samples yet: {_names(step.newcomers)}"
    if len(step.reduced) > 1:
        yield f"  SPLIT: {len(step.reduced)} groups finished a round of this step"
    shown = step.incidents if whole else step.incidents[:MAX_INCIDENTS]
    for incident in shown:
        yield f"  {format_duration(incident['t'])}: {_incident_text(incident)}"
    if len(shown) < len(step.incidents):
        yield f"  and {len(step.incidents) - len(shown)} more; --step {step.number} shows all"


def _incident_text(entry: Entry) -> str:
    """One thing that happened, in words."""
    kind, peer, other = entry["kind"], entry.get("peer", ""), entry.get("other", "")
    why = f" ({entry['why']})" if entry.get("why") else ""
    match kind:
        case "fault":
            return f"fault: {entry['what']}" + (" is over" if entry["ended"] else f" strikes {_names(entry['peers'])}")
        case "peer.arrived":
            return f"{peer} joins as {entry['role']}"
        case "peer.left":
            return f"{peer} leaves ({entry['how']})"
        case "secure.banned":
            return f"{other} is banned{why}"
        case "sync.finished":
            return f"{peer} has the state of step {entry['step']}, fetched in {format_duration(entry['seconds'])}"
        case "round.repaired":
            return f"{peer} had the round repaired, without {counted(entry['lost'], 'member')}"
        case "round.work_taken_over":
            return f"{peer}: the work of {other} is taken over"
    return f"{peer}: {kind}" + (f" {other}" if other else "") + why


def _names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
