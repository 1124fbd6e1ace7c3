"""`minga runs`: what lies on this machine of the runs in which it took part, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path

from minga.cli.terminal.context import Context
from minga.cli.terminal.output import plain_table
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration, format_size
from minga.training.run_folder.known_runs import KnownRun, known_runs, runs_folder


def run_runs(directory: Path | None, remove: str | None, context: Context) -> None:
    """List the runs below `directory` (None: the user's data folder), or remove the one that `remove` names.

    Raises `ConfigurationError` if that is no run, more than one, or one that this machine hosts at present.
    """
    base, output = runs_folder(directory), context.output
    runs = known_runs(base)
    if remove is not None:
        run = _named(remove, runs, base)
        run.remove()
        output.say(f"{run.directory} is removed: {run.spec.name}, {run.progress}.")
        output.summary(ok=True, removed=run.signed.run_id)
        return
    table = plain_table("run", "name", "step", "age", "size", "folder", left=["name", "folder"], wraps="folder")
    for run in runs:
        step = "" if run.step is None else str(run.step)
        size = format_size(run.size_bytes())
        table.add_row(run.directory.name, run.spec.name, step, format_duration(run.age_s), size, str(run.directory))
    output.say(table if runs else f"No run lies in {base}.")
    output.summary(ok=True, directory=str(base), runs=[_as_json(run) for run in runs])


def _named(text: str, runs: list[KnownRun], base: Path) -> KnownRun:
    found = [run for run in runs if text and run.signed.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    how_many = "no run" if not found else f"{len(found)} runs"
    raise ConfigurationError(
        f"{text!r}: {how_many} in {base} with an id that begins like this; `minga runs` lists them"
    )


def _as_json(run: KnownRun) -> dict[str, object]:
    return {
        "run_id": run.signed.run_id,
        "name": run.spec.name,
        "organiser": run.signed.organiser,
        "step": run.step,
        "age_s": round(run.age_s, 1),
        "size_bytes": run.size_bytes(),
        "directory": str(run.directory),
    }
