"""`minga runs`: what lies on this machine of the runs in which it took part; how to be rid of one, and how to keep a
run and its organiser's key in one encrypted file.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from minga.cli.commands import RunsBackupCommand, RunsCommand, RunsRemoveCommand, RunsRestoreCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import own_run
from minga.cli.terminal.output import FittedTable, Output
from minga.core.errors import ConfigurationError
from minga.core.files import read_secret
from minga.core.units import counted, format_duration, format_size
from minga.identity.keys.keys import Identity
from minga.keeping.known_runs import KnownRun, RunFolder, known_run, only_one, run_folders, runs_folder

MAX_PASSPHRASE_CHARACTERS = 1024


def run_runs(options: RunsCommand, context: Context) -> None:
    """List what peers left on this machine; temporary folders on one line for all."""
    base, output = runs_folder(options.directory), context.output
    runs = run_folders(base)
    temporary = _temporary(runs)
    listed = [run for run in runs if run not in temporary]
    table = FittedTable(
        ("run", "name", "step", "age", "size"),
        [_cells(run) for run in listed],
        left=("name",),
        least_first=("size", "age", "name"),
        wraps="name",
    )
    output.say(table if listed else f"No run lies in {base}.")
    if listed:  # on lines of their own: in a narrow terminal a column would break them
        output.say("\nTheir folders; where a command takes such a FOLDER, it takes the word under run as well:\n")
        for run in listed:
            output.say(str(run.directory))
    if not all(isinstance(run, KnownRun) for run in listed):
        output.say(
            "\nA folder without a run spec is of a peer that cannot come back. minga runs remove RUN deletes it."
        )
    if temporary:
        output.say(
            f"\n{_together(temporary)} of peers whose key is for one time only. minga runs remove --temporary deletes "
            "those of peers that were killed."
        )
    output.summary(
        ok=True,
        directory=str(base),
        runs=[_as_json(run) for run in runs if isinstance(run, KnownRun)],
        without_spec=[_of_folder(run) for run in runs if not isinstance(run, KnownRun)],
    )


def _cells(run: RunFolder) -> tuple[str, ...]:
    step = str(run.step) if isinstance(run, KnownRun) and run.step is not None else ""
    return run.directory.name, run.name, step, format_duration(run.age_s), format_size(run.size_bytes())


def run_remove(options: RunsRemoveCommand, context: Context) -> None:
    """Remove the folder of a run, or all temporary ones that no peer uses, as a rule after a question.

    Raises `ConfigurationError` if that is no run, more than one, or one in which this machine takes part at present,
    and where nobody can be asked.
    """
    base, output = runs_folder(options.directory), context.output
    folders = run_folders(base)
    if options.run is None:
        chosen = [each for each in _temporary(folders) if not each.is_used]
        what = _together(chosen)
    else:
        chosen = [run := only_one(options.run, folders, base)]
        what = f"{run.directory} ({run.name}, {run.progress}, {format_size(run.size_bytes())})"
    if chosen and not (options.yes or _confirmed(what, output)):
        output.say("Nothing was deleted.")
        raise typer.Exit
    for each in chosen:
        each.remove()
    output.say(f"Deleted: {what}.")
    output.summary(ok=True, removed=[each.id for each in chosen])


def _temporary(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """The temporary ones among them; where a run spec lies there, as of a host, its checkpoints may be wanted."""
    return [each for each in folders if each.is_temporary and not isinstance(each, KnownRun)]


def _together(folders: Sequence[RunFolder]) -> str:
    return f"{counted(len(folders), 'temporary folder')} ({format_size(sum(each.size_bytes() for each in folders))})"


def _confirmed(what: str, output: Output) -> bool:
    if not output.can_ask:
        raise ConfigurationError(f"without a terminal, add --yes to delete {what}")
    return typer.confirm(f"Delete {what}? Nothing can bring it back", default=False)


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


def run_backup(options: RunsBackupCommand, context: Context) -> None:
    """Write a backup of a run."""
    from minga.training.backup import write_backup

    run, out = Path(own_run(options.run)), options.out
    signed = known_run(run).signed
    keys = list(Identity.stored(options.identity, {signed.organiser}).values())
    if not keys:
        raise ConfigurationError(
            f"the key of the organiser of this run, {signed.organiser[:10]}, is not on this machine: name its "
            "file with --identity"
        )
    made = write_backup(run, out, keys[0], _passphrase(options.passphrase_file, is_new=True))
    at = "no checkpoint yet" if made.step is None else f"the checkpoint of step {made.step}"
    context.output.say(
        f"{out} ({format_size(made.size_bytes)}) holds {made.run.spec.name}: the organiser's key, the files of the "
        f"run, and {at}. Keep it on another machine, and the passphrase elsewhere. To go on with the run: "
        f"minga runs restore {out.name}"
    )
    context.output.summary(ok=True, run_id=signed.run_id, step=made.step, size_bytes=made.size_bytes, out=str(out))


def run_restore(options: RunsRestoreCommand, context: Context) -> None:
    """Make the run's folder and the organiser's key file out of a backup."""
    from minga.training.backup import restore_backup

    file, passphrase = options.file, options.passphrase_file
    if not file.is_file():
        raise ConfigurationError(f"{file}: no such file")
    restored = restore_backup(
        file, runs_folder(options.directory), options.identity, _passphrase(passphrase, is_new=False)
    )
    run = restored.run
    context.output.say(f"{run.spec.name} is restored: {run.progress}. End the earlier host, if it lives; then type:")
    context.output.say_whole(shlex.join(["minga", "host", str(run.directory), "--identity", str(restored.key)]))
    context.output.summary(
        ok=True, run_id=run.signed.run_id, step=run.step, directory=str(run.directory), identity=str(restored.key)
    )


def _passphrase(path: Path | None, *, is_new: bool) -> str:
    if path is None:
        if not sys.stdin.isatty():
            raise ConfigurationError("without a terminal, give the passphrase with --passphrase-file FILE")
        return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True))
    return read_secret(path, "--passphrase-file", MAX_PASSPHRASE_CHARACTERS)
