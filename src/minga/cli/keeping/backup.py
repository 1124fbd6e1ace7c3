"""`minga runs backup` and `minga runs restore`: a run and its organiser's key in one encrypted file."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from minga.cli.commands import RunsBackupCommand, RunsRestoreCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import own_run
from minga.core.errors import ConfigurationError
from minga.core.files import read_line
from minga.core.units import format_size
from minga.identity.keys.keys import Identity
from minga.keeping.known_runs import known_run, runs_folder
from minga.training.backup import restore_backup, write_backup

MAX_PASSPHRASE_CHARACTERS = 1024


def run_backup(options: RunsBackupCommand, context: Context) -> None:
    """Write a backup of a run."""
    run, out = Path(own_run(options.run)), options.out
    signed = known_run(run).signed
    keys = [key for key in Identity.stored(options.identity) if key.peer_id == signed.organiser]
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
    file, passphrase = options.file, options.passphrase_file
    if not file.is_file():
        raise ConfigurationError(f"{file}: no such file")
    restored = restore_backup(
        file, runs_folder(options.directory), options.identity, _passphrase(passphrase, is_new=False)
    )
    run = restored.run
    context.output.say(f"{run.spec.name} is restored: {run.progress}. End the earlier host, if it lives; then type:")
    context.output.say(f"minga host {run.directory} --identity {restored.key}")
    context.output.summary(
        ok=True, run_id=run.signed.run_id, step=run.step, directory=str(run.directory), identity=str(restored.key)
    )


def _passphrase(path: Path | None, *, is_new: bool) -> str:
    if path is None:
        if not sys.stdin.isatty():
            raise ConfigurationError("without a terminal, give the passphrase with --passphrase-file FILE")
        return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True))
    try:
        text = read_line(path, MAX_PASSPHRASE_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--passphrase-file {path}: cannot be read: {type(error).__name__}") from error
    if not 0 < len(text) <= MAX_PASSPHRASE_CHARACTERS:
        raise ConfigurationError(
            f"--passphrase-file {path}: it holds one line of 1 to {MAX_PASSPHRASE_CHARACTERS} characters"
        )
    return text
