"""The commands `minga receipts …` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Json, Voucher, own_run

Folder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder or id, as `minga runs` lists them.", show_default=False),
]


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    group = typer.Typer(
        name="receipts",
        help="What the members of a run attest of each other's contribution.",
        no_args_is_help=True,
    )
    for command in (show, export, verify):
        group.command()(command)
    app.add_typer(group)


def show(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="The link of a run, or its folder or id here.", show_default=False)
    ],
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """List the peers of a run by what is attested of them: samples, steps, bytes reduced."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.receipts import run_show
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind)
    run_show(source, peer, ready)


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.", show_default=False)],
    peer: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The peer that it is about, by the beginning of its id (default: this one)."),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="The receipts of all peers.")] = False,
    json_output: Json = False,
) -> None:
    """Write a file that anybody can check with `minga receipts verify`."""
    if everybody and peer is not None:
        raise typer.BadParameter("--peer and --all exclude each other")
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.receipts import run_export

    run_export(Path(own_run(str(folder))), out, peer, ready, everybody=everybody)


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `minga receipts export` wrote.")],
    run: Annotated[
        str | None,
        typer.Option(
            metavar="LINK|FOLDER", help="The run that it should be of: its link, its folder or id, or an archive."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Check a file of receipts, offline: signatures, membership, and what the members attest."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.receipts import run_verify

    raise typer.Exit(run_verify(file, run, ready))
