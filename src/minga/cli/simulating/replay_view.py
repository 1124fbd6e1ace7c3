"""How one step of a simulation looks."""

from __future__ import annotations

from collections.abc import Iterator

from minga.cli.simulating.sim_view import bar
from minga.core.units import format_duration
from minga.simulation.event_log import Entry
from minga.simulation.timeline import PHASES, StepRecord

MAX_INCIDENTS = 12
MAX_NAMES = 10


def step_text(step: StepRecord, *, whole: bool) -> Iterator[str]:
    """A step in a few lines; with `whole` nothing that happened in it is left out."""
    yield ""
    took = f" after {format_duration(step.took_s)}" if step.number > 1 else ""
    yield (
        f"Step {step.number} at {format_duration(step.applied_s)}{took}, led by {step.leader or 'nobody'}: "
        f"{step.members} members, {step.samples} samples" + (f", loss {step.loss:.4f}" if step.loss is not None else "")
    )
    if step.measured:
        phases = step.mean_phases_s
        yield f"  {bar(phases)}  " + ", ".join(f"{phase} {format_duration(phases[phase])}" for phase in PHASES)
        predicted = "" if step.predicted_s is None else f", {format_duration(step.predicted_s)} by the plan"
        yield f"  bound by: {step.bound_by}; the round took {format_duration(step.round_s)}{predicted}"
    yield f"  {step.alive} peers there; {step.contributors} of {step.current} trainers that were up to date contributed"
    if step.missing:
        yield f"  missing: {_names(step.missing)}"
    if step.newcomers:
        yield f"  newcomers without samples yet: {_names(step.newcomers)}"
    if len(step.reduced) > 1:
        yield f"  SPLIT: {len(step.reduced)} groups finished a round of this step"
    shown = step.incidents if whole else step.incidents[:MAX_INCIDENTS]
    for incident in shown:
        yield f"  {format_duration(incident['t'])}: {incident_text(incident)}"
    if len(shown) < len(step.incidents):
        yield f"  and {len(step.incidents) - len(shown)} more; --step {step.number} shows all"


def incident_text(entry: Entry) -> str:
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
            return f"{peer} had the round repaired, without {entry['lost']} members"
        case "round.work_taken_over":
            return f"{peer}: the work of {other} is taken over"
    return f"{peer}: {kind}" + (f" {other}" if other else "") + why


def _names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
