"""The commands that find out what is wrong, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, IdentityFile, Json, own_run


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (evidence, doctor, version):
        app.command()(command)


def evidence(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run's folder or id, as `minga runs` lists them.", show_default=False),
    ],
    json_output: Json = False,
) -> None:
    """Check why members of a Byzantine-tolerant run were banned, from the evidence in the run's folder."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.evidence import run_evidence

    raise typer.Exit(run_evidence(Path(own_run(str(directory))), ready))


def doctor(
    link: Annotated[
        str | None,
        typer.Argument(metavar="[LINK]", help="The link of a run, to check the way into it.", show_default=False),
    ] = None,
    identity: IdentityFile = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Check this machine, and with a LINK the way into its run; names the hop that fails and what to do."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.doctor import run_doctor

    raise typer.Exit(run_doctor(link, identity, directory, bind, ready.output))


def version(json_output: Json = False) -> None:
    """Show the versions of minga, of its wire format, and of the libraries under it."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.version import run_version

    run_version(ready)
