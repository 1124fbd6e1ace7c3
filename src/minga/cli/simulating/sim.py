"""`minga sim`: run a scenario on virtual time, and say what came of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.markup import escape

from minga.cli.commands import SimCommand
from minga.cli.simulating.sim_view import (
    progress_line,
    scenario_table,
    step_json,
    summary_text,
    sweep_table,
)
from minga.cli.terminal import exit_codes
from minga.cli.terminal.context import Context, collect_again, tell_cautions
from minga.cli.terminal.interrupt import ENDS, Interruption
from minga.cli.terminal.output import Display, Ticker
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.simulation.outcome import Outcome
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Change, Scenario, changed, read_scenario, shipped, split_change, sweeps
from minga.simulation.timeline import StepRecord


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
            context.output.say(escape(line))
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
        context.output.say(escape(f"{scenario.name}: {words}"))
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
    from minga.simulation.outcome import draw

    for path in draw(outcome, folder):
        context.output.say(escape(f"Drawn: {path}"))
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
