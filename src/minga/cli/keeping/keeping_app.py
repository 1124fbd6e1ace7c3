"""The commands about what lies on this machine, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, IdentityFile, Json, OptionalLink, Voucher

PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File with the passphrase; without it you are asked.")
]


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (runs, backup, restore, export):
        app.command()(command)


def runs(
    remove: Annotated[
        str | None, typer.Option(help="Delete the folder of the run with an id that begins like this.")
    ] = None,
    directory: Directory = None,
    json_output: Json = False,
) -> None:
    """List the runs that lie on this machine, with step, age and size; --remove deletes one."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.runs import run_runs

    run_runs(directory, remove, ready)


def backup(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder, which `minga host` and `minga runs` show.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write, which must not be there.", show_default=False)],
    identity: IdentityFile = None,
    passphrase_file: PassphraseFile = None,
    json_output: Json = False,
) -> None:
    """Write key, files and newest checkpoint of a run that you organise into one encrypted file."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.backup import run_backup

    run_backup(run, out, identity, passphrase_file, ready)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `minga backup` wrote.")],
    directory: Directory = None,
    identity: Annotated[
        Path | None, typer.Option(help="Where the organiser's key goes (default: this user's key file, if free).")
    ] = None,
    passphrase_file: PassphraseFile = None,
    json_output: Json = False,
) -> None:
    """Lay a run down on this machine again, from what `minga backup` wrote."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.backup import run_restore

    run_restore(file, directory, identity, passphrase_file, ready)


def export(
    out: Annotated[Path, typer.Option(help="New or empty directory for the model.", show_default=False)],
    link: OptionalLink = None,
    directory: Annotated[
        Path | None, typer.Option(help="Instead of a LINK: the folder of a run on this machine.")
    ] = None,
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Write the model as transformers loads it, from a live run or from the newest checkpoint of a run's folder."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.export import run_export
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind)
    run_export(link, directory, out, peer, ready)
