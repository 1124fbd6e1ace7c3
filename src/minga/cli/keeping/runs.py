"""`minga runs`: what lies on this machine of the runs in which it took part, and how to be rid of it."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from minga.cli.commands import RunsCommand, RunsRemoveCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Output, plain_table
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration, format_size
from minga.keeping.known_runs import KnownRun, RunFolder, only_one, run_folders, runs_folder


def run_remove(options: RunsRemoveCommand, context: Context) -> None:
    """Remove the folder of a run, as a rule after a question.

    Raises `ConfigurationError` if that is no run, more than one, or one that this machine hosts at present, and where
    nobody can be asked.
    """
    base, output = runs_folder(options.directory), context.output
    run = only_one(options.run, run_folders(base), base)
    if not (options.yes or _confirmed(run, output)):
        output.say("Nothing was deleted.")
        raise typer.Exit
    run.remove()
    output.say(f"{run.directory} is removed: {run.name}, {run.progress}.")
    output.summary(ok=True, removed=run.id)


def run_runs(options: RunsCommand, context: Context) -> None:
    """List what peers left on this machine."""
    base, output = runs_folder(options.directory), context.output
    runs = run_folders(base)
    table = plain_table("run", "name", "step", "age", "size", left=["name"], wraps="name")
    for run in runs:
        step = str(run.step) if isinstance(run, KnownRun) and run.step is not None else ""
        size = format_size(run.size_bytes())
        table.add_row(run.directory.name, run.name, step, format_duration(run.age_s), size)
    output.say(table if runs else f"No run lies in {base}.")
    if runs:  # on lines of their own: in a narrow terminal a column would break them
        output.say("\nTheir folders; where a command takes such a FOLDER, it takes the word under run as well:\n")
        for run in runs:
            output.say(escape(str(run.directory)))
    known = [run for run in runs if isinstance(run, KnownRun)]
    if len(known) < len(runs):
        output.say(
            "\nA folder without a run spec is of a peer that cannot come back, as one whose key was for one time only. "
            "minga runs remove RUN deletes it."
        )
    output.summary(
        ok=True,
        directory=str(base),
        runs=[_as_json(run) for run in known],
        without_spec=[_of_folder(run) for run in runs if run not in known],
    )


def _confirmed(run: RunFolder, output: Output) -> bool:
    if not (output.interactive and sys.stdin.isatty()):
        raise ConfigurationError(f"without a terminal, add --yes to delete {run.directory} ({_facts(run)})")
    return typer.confirm(f"Delete {run.directory} ({_facts(run)})? Nothing can bring it back", default=False)


def _facts(run: RunFolder) -> str:
    return f"{run.name}, {run.progress}, {format_size(run.size_bytes())}"


def _as_json(run: KnownRun) -> dict[str, object]:
    return {
        "run_id": run.signed.run_id,
        "name": run.spec.name,
        "organiser": run.signed.organiser,
        "step": run.step,
        **_of_folder(run),
    }


def _of_folder(run: RunFolder) -> dict[str, object]:
    return {"age_s": round(run.age_s, 1), "size_bytes": run.size_bytes(), "directory": str(run.directory)}
