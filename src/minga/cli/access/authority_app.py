"""The command of whoever runs an authority, and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, Json, ParentWatchFlag


def add_commands(app: typer.Typer) -> None:
    """Add it to the command `minga`."""
    app.command()(authority)


def authority(
    link: Annotated[
        str | None,
        typer.Argument(
            metavar="INVITATION",
            help="What `minga admit LINK --uses 500` made; - reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        Path | None, typer.Option(help="TOML file of those who may take part.", show_default=False)
    ] = None,
    listen: Annotated[str, typer.Option(help="Where to listen; port 0 is any.")] = "127.0.0.1:8470",
    url: Annotated[
        str | None, typer.Option(help="Where people reach it, behind a proxy: https://… (default: where it listens).")
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="Where it keeps who has which peers (default: beside --allow).")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--cert", help="PEM file for TLS, without a proxy.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="(--cert) PEM file with its private key.")] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", help="An organiser's key file: bar at once who is taken off the list."),
    ] = None,
    directory: Directory = None,
    bind: Bind = None,
    new_code: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead: make a code for a person of the list, and exit.")
    ] = None,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """For organisers: give people who log in access to a run for members, each for some hours at a time."""
    if new_code is None and (link is None or allow is None):
        raise typer.BadParameter("name an INVITATION and a file with --allow, or a person with --new-code")
    ready = make_context(json_output=json_output, parent_watch=parent_watch)
    from minga.cli.access.authority import AuthorityOptions, run_authority, run_new_code
    from minga.cli.terminal.peer_options import peer_options

    if link is None or allow is None:
        run_new_code(str(new_code), ready)
        return
    peer = peer_options("monitor", identity=None, ephemeral=True, directory=directory, host=bind)
    options = AuthorityOptions(allow, roster, listen, url, certificate, key, identity)
    run_authority(link, options, peer, ready)
