"""`minga replay`: the log of a simulation, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.markup import escape

from minga.cli.simulating.replay_view import step_text
from minga.cli.simulating.sim_view import step_json
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.simulation.event_log import Log
from minga.simulation.timeline import StepRecord, Timeline


def run_replay(path: Path, number: int | None, context: Context) -> None:
    """Show each step of a log, or one of them with everything that happened in it."""
    log, ledger = Log(path), Timeline()
    try:
        for entry in log:
            ledger.add(entry)
        steps = [step for step in ledger.finished() if number in (None, step.number)]
        lines = list(_lines(log, ledger, steps, whole=number is not None))
        events = [{**step_json(step), "incidents": step.incidents} for step in steps]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(f"{path}: not as `minga sim` writes it, something was changed: {error!r}") from error
    if not steps and number is not None:
        raise ConfigurationError(f"{path}: has no step {number}; there are steps 1 to {ledger.last_step}")
    for event in events:
        context.output.event("step", **event)
    _show(lines, context)
    context.output.summary(
        ok=True, steps=ledger.last_step, peers=len(ledger.peers), virtual_s=ledger.now_s, is_complete=log.is_complete
    )


def _lines(log: Log, ledger: Timeline, steps: list[StepRecord], *, whole: bool) -> Iterator[str]:
    scenario = log.head.get("scenario")
    name = scenario.get("name", "") if isinstance(scenario, dict) else ""
    yield f"{name}: {ledger.last_step} steps, {len(ledger.peers)} peers"
    if not log.is_complete:
        yield "The log was cut off or changed: its digest is missing or wrong."
    for step in steps:
        yield from step_text(step, whole=whole)


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
