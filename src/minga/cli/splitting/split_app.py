"""The commands `minga split …` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import (
    Announce,
    Bind,
    Directory,
    Download,
    Ephemeral,
    IdentityFile,
    Json,
    LinkArgument,
    ParentWatchFlag,
    Port,
    Threads,
    Upload,
    own_run,
)


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    group = typer.Typer(
        name="split",
        help="A model that is cut: the data stays with clients, a server has the end of the model.",
        no_args_is_help=True,
    )
    for command in (serve, join):
        group.command()(command)
    app.add_typer(group)


def serve(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="RUN.TOML", help='A run spec with recipe = "split" and a [split].', show_default=False),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run, by folder or id; its link stays valid.")
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="End after so many batches of all clients.")] = None,
    max_upload: Upload = None,
    max_download: Download = None,
    bind: Bind = None,
    port: Port = 0,
    announce: Announce = None,
    threads: Threads = None,
    directory: Directory = None,
    identity: IdentityFile = None,
    ephemeral: Ephemeral = False,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Begin a run with a model that is cut, or go on with one, and serve its end: prints ONE link for the clients."""
    if (spec is None) == (resume is None):
        raise typer.BadParameter("name either a run spec or --resume DIRECTORY")
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    from minga.cli.splitting.serve import run_serve
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options(
        "trainer",
        identity=identity,
        ephemeral=ephemeral,
        directory=directory,
        max_upload=max_upload,
        max_download=max_download,
        host=bind,
        port=port,
        announce=tuple(announce or ()),
    )
    folder = resume and Path(own_run(str(resume), directory))
    run_serve(spec, folder, peer, ready, batches=batches, threads=threads)


def join(
    link: LinkArgument,
    part: Annotated[
        int | None, typer.Option(min=1, help="Which part of the run's example this client has (default: by its key).")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Own .csv files: one sample a line, its class at the end; may be repeated."),
    ] = None,
    role: Annotated[str, typer.Option(help="trainer, or client (never dialled).")] = "trainer",
    batch: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 64,
    batches: Annotated[int | None, typer.Option(min=1, help="Leave after so many batches.")] = None,
    max_upload: Upload = None,
    max_download: Download = None,
    bind: Bind = None,
    port: Port = 0,
    threads: Threads = None,
    directory: Directory = None,
    identity: IdentityFile = None,
    ephemeral: Ephemeral = False,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Train a model that is cut with the samples of this machine, which stay here. Ctrl-C leaves at any time."""
    if role not in ("trainer", "client"):
        raise typer.BadParameter("--role: choose trainer or client")
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    from minga.cli.splitting.join import SplitJoinOptions, run_split_join
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options(
        role,
        identity=identity,
        ephemeral=ephemeral,
        directory=directory,
        max_upload=max_upload,
        max_download=max_download,
        host=bind,
        port=port,
    )
    run_split_join(link, peer, SplitJoinOptions(part, tuple(data or ()), batch, batches, threads), ready)
