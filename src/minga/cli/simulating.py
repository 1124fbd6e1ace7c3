"""`minga sim`: run a scenario on virtual time and say what came of it; with --replay, show its log step by step."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.table import Table

from minga.cli.commands import SimCommand
from minga.cli.terminal import exit_codes
from minga.cli.terminal.context import Context, collect_again, tell_cautions
from minga.cli.terminal.interrupt import ENDS, Interruption
from minga.cli.terminal.output import Display, Ticker, plain_table
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.units import counted, format_duration, format_number, format_size
from minga.simulation.event_log import Entry, Log
from minga.simulation.outcome import Outcome, draw
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Change, Scenario, changed, read_scenario, shipped, split_change, sweeps
from minga.simulation.scenario.sections import StopTable
from minga.simulation.timeline import PHASES, StepRecord, Timeline

BAR_CHARACTERS = 40
MARKS = {"compute": "█", "wait": "░", "communicate": "▓", "apply": "▪"}
ENDED = {
    "steps": "it took the steps that were asked for",
    "time": "its virtual time was up",
    "loss": "the loss was reached",
    "stopped": "the organisers ended the run",
    "interrupt": "interrupted",
    "nobody is left": "nobody was left",
}
MAX_BINDINGS = 5
MAX_BANS = 20
MAX_INCIDENTS = 12
MAX_NAMES = 10


def run_sim(options: SimCommand, context: Context) -> int:
    """Run a scenario, or one for each combination of a sweep; the exit code. Without one, name those that come with
    minga.
    """
    collect_again()
    source = options.source
    if source is None:
        context.output.show(Display([scenario_table(shipped())], {"scenarios": shipped()}))
        return exit_codes.OK
    values = read_scenario(source)
    changes = [split_change(text, "--set") for text in options.changes]
    _check_places(source, options)
    if not options.sweep:
        return _run_one(Scenario.from_mapping(changed(values, changes), source), options, context)
    if options.log is not None:
        raise ConfigurationError("--log is for one run, and --sweep makes several; leave one of them out")
    points = list(sweeps(options.sweep))
    scenarios = [Scenario.from_mapping(changed(values, [*changes, *point]), source) for point in points]
    return _run_all(list(zip(points, scenarios, strict=True)), options, context)


def _check_places(source: str, options: SimCommand) -> None:
    """Refuse at once what could not be written in the end, or would overwrite the scenario.

    Raises `ConfigurationError` and `StorageError`.
    """
    log = options.log
    if log is not None and os.path.exists(source) and os.path.exists(log) and os.path.samefile(source, log):
        raise ConfigurationError(f"--log {log}: that is the scenario itself; name another file")
    if options.plot is None:
        return
    try:
        options.plot.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "not a folder" if isinstance(error, FileExistsError) else reason_of(error)
        raise StorageError(f"--plot {options.plot}: {why}") from error
    if not os.access(options.plot, os.W_OK | os.X_OK):
        raise StorageError(f"--plot {options.plot}: nothing can be written into this folder")


def _run_one(scenario: Scenario, options: SimCommand, context: Context) -> int:
    def tell(outcome: Outcome) -> None:
        # Before the world is taken down, because after Ctrl-C there is little time left.
        for line in summary_text(outcome):
            context.output.say(line)
        interrupted = outcome.ended_by == "interrupt"
        if not interrupted:
            _draw(outcome, options.plot, context)
        _last_line(context, outcome.summary(), interrupted=interrupted)

    tell_cautions(scenario.run_spec(), context.output)
    return _simulate(Simulation(scenario, options.log), context, tell)[1]


def _run_all(runs: Sequence[tuple[list[Change], Scenario]], options: SimCommand, context: Context) -> int:
    """One run after the other; what Ctrl-C leaves undone is left out of the table."""
    done: list[tuple[list[Change], Outcome]] = []

    def tell_all(*, interrupted: bool) -> None:
        context.output.say(sweep_table(done))
        told = [{**dict(point), **outcome.summary()} for point, outcome in done]
        _last_line(context, {"runs": told}, interrupted=interrupted)

    def tell(outcome: Outcome) -> None:
        if outcome.ended_by == "interrupt":
            tell_all(interrupted=True)

    for point, scenario in runs:
        words = ", ".join(f"{key} = {value}" for key, value in point)
        context.output.say(f"{scenario.name}: {words}")
        outcome, code = _simulate(Simulation(scenario), context, tell)
        if code != exit_codes.OK:
            return code
        done.append((point, outcome))
        context.output.event("run", settings=dict(point), **outcome.summary())
        if options.plot is not None:
            _draw(outcome, options.plot / re.sub(r"[^A-Za-z0-9._=-]+", "-", words.replace(" = ", "=")), context)
    tell_all(interrupted=False)
    return exit_codes.OK


def _simulate(simulation: Simulation, context: Context, tell: Callable[[Outcome], None]) -> tuple[Outcome, int]:
    """Run one simulation, showing how far it is; `tell` is called at its end. Returns the exit code, too."""
    shown = 0

    def tell_steps(steps: list[StepRecord]) -> None:
        nonlocal shown
        for step in steps[shown:]:
            shown += 1
            context.output.event("step", **step_json(step))

    def look() -> Display:
        tell_steps(simulation.timeline.finished()[:-1])  # some members may still be at the newest one
        line = progress_line(simulation.timeline, simulation.scenario.stop, simulation.virtual_s)
        return Display([line], lines=[line])

    with contextlib.ExitStack() as display:
        signals = display.enter_context(_interrupting(simulation, context.interruption))
        display.enter_context(Ticker(context.output, look))

        def end(outcome: Outcome) -> None:
            display.close()
            tell_steps(outcome.steps)
            tell(outcome)

        outcome = simulation.run(end)
    if outcome.ended_by != "interrupt":
        return outcome, exit_codes.OK
    return outcome, exit_codes.INTERRUPTED if signal.SIGINT in signals else exit_codes.TERMINATED


@contextlib.contextmanager
def _interrupting(simulation: Simulation, interruption: Interruption) -> Iterator[list[int]]:
    """Let Ctrl-C, SIGTERM or SIGHUP end the simulation, and not the program wherever it is just then; gives those that
    came.
    """
    received: list[int] = []

    def handle(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        received.append(signal_number)
        if signal_number == signal.SIGINT:
            exit_codes.interrupts.append(signal_number)
        elif signal_number != signal.SIGTERM:
            interruption.let_go_of_terminal()
        simulation.interrupt()

    ends = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, *ends)}
    try:
        yield received
    finally:
        for number, former in before.items():
            if not received or number == signal.SIGINT:  # told to end once more, it still says what came of it
                signal.signal(number, former)


def _draw(outcome: Outcome, folder: Path | None, context: Context) -> None:
    if folder is None:
        return
    for path in draw(outcome, folder):
        context.output.say(f"Drawn: {path}")
        context.output.event("drawn", path=str(path))


def _last_line(context: Context, fields: dict[str, Any], *, interrupted: bool) -> None:
    if not interrupted:
        context.output.summary(ok=True, **fields)
        return
    name, code = (
        ("KeyboardInterrupt", exit_codes.INTERRUPTED)
        if exit_codes.interrupts
        else ("Terminated", exit_codes.TERMINATED)
    )
    context.output.summary(ok=False, error=name, message="interrupted", exit_code=code, **fields)
    exit_codes.interrupts_told.append(exit_codes.INTERRUPTED)


# ---- what came of a simulation


def scenario_table(scenarios: Mapping[str, str]) -> Table:
    """Names of the shipped scenarios and what they model."""
    table = plain_table("scenario", "what it models", left=("what it models",), wraps="what it models")
    for name, text in scenarios.items():
        table.add_row(name, text)
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
        f"{ENDED[outcome.ended_by]}. It took {format_duration(outcome.wall_s)} of real time."
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
    if outcome.pending:
        yield f"Faults of the script that never happened: {'; '.join(outcome.pending)}."
    up, down = values["bytes_sent_per_peer"], values["bytes_received_per_peer"]
    yield (
        f"A peer sent {format_size(up['mean'])} on average, {format_size(up['most'])} at most, and received "
        f"{format_size(down['mean'])}, at most {format_size(down['most'])}."
    )
    if values["loss"] is not None:
        yield f"Held-out loss: {outcome.losses()[0][1]:.4f} after the first step, {values['loss']:.4f} at the end."
        warmup = outcome.scenario.optimizer.warmup_steps
        if values["steps"] < warmup:
            yield (
                f"All steps lay in the warm-up of the learning rate, of {warmup:,}: so short a run learns little. "
                "Choose fewer by warmup_steps in [optimizer]."
            )
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
    keys = [key for key, _ in runs[0][0]] if runs else []
    table = plain_table(*keys, "steps", "steps/h", *PHASES, "computing", "took part", "loss", left=keys)
    for point, outcome in runs:
        phases, losses = outcome.phases_s, outcome.losses()
        table.add_row(
            *(value for _, value in point),
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


# ---- the log of a simulation, step by step


def run_replay(options: SimCommand, context: Context) -> None:
    """Show each step of a log, or one of them with everything that happened in it."""
    path, number = Path(str(options.replay)), options.step
    log, timeline = Log(path), Timeline()
    try:
        for entry in log:
            timeline.add(entry)
        steps = [step for step in timeline.finished() if number in (None, step.number)]
        lines = list(_replay_lines(log, timeline, steps, whole=number is not None))
        events = [{**step_json(step), "incidents": step.incidents} for step in steps]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(f"{path}: not as `minga sim` writes it, something was changed: {error!r}") from error
    if not steps and number is not None:
        raise ConfigurationError(f"{path}: has no step {number}; there are steps 1 to {timeline.last_step}")
    for event in events:
        context.output.event("step", **event)
    _page(lines, context)
    context.output.summary(
        ok=True,
        steps=timeline.last_step,
        peers=len(timeline.peers),
        virtual_s=timeline.now_s,
        is_complete=log.is_complete,
    )


def _replay_lines(log: Log, timeline: Timeline, steps: list[StepRecord], *, whole: bool) -> Iterator[str]:
    scenario = log.head.get("scenario")
    name = scenario.get("name", "") if isinstance(scenario, dict) else ""
    yield f"{name}: {counted(timeline.last_step, 'step')}, {counted(len(timeline.peers), 'peer')}"
    if not log.is_complete:
        yield "The log was cut off or changed: its digest is missing or wrong."
    for step in steps:
        yield from _replayed(step, whole=whole)


def _page(lines: Sequence[str], context: Context) -> None:
    """All at once, in a pager where somebody sits; without letters that would command a terminal, or are none."""
    lines = [
        "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line) for line in lines
    ]
    if context.output.interactive:
        with context.output.console.pager(styles=True):
            for line in lines:
                context.output.say(line)
    else:
        for line in lines:
            context.output.say(line)


def _replayed(step: StepRecord, *, whole: bool) -> Iterator[str]:
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
        yield f"  {format_duration(incident['t'])}: {_incident(incident)}"
    if len(shown) < len(step.incidents):
        yield f"  and {len(step.incidents) - len(shown)} more; --step {step.number} shows all"


def _incident(entry: Entry) -> str:
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
