"""The command that serves a dashboard, and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, Json, LinkArgument, ParentWatchFlag

Listen = Annotated[
    str, typer.Option("--listen", metavar="ADDRESS:PORT", help="Where the dashboard listens; port 0 is any.")
]
Public = Annotated[
    bool, typer.Option("--public", help="Beyond this machine, every viewer may look; without it each needs a token.")
]
Url = Annotated[
    str | None, typer.Option("--url", help="Where viewers reach it, behind a proxy: https://… (default: --listen).")
]


def add_commands(app: typer.Typer) -> None:
    """Add it to the command `minga`."""
    app.command()(dashboard)


def dashboard(
    link: LinkArgument,
    listen: Listen = "127.0.0.1:8471",
    public: Public = False,
    url: Url = None,
    organise: Annotated[
        bool, typer.Option("--organise", help="Open it with the organiser's key: pause, resume, ban, amend.")
    ] = False,
    identity: Annotated[
        Path | None,
        typer.Option(
            "--identity", help="Key file of the organiser, or in a run for members of a member (default: data folder)."
        ),
    ] = None,
    bind: Bind = None,
    directory: Directory = None,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Serve web pages about a run: loss, speed, peers, rounds, leaderboard, how to join; and an API."""
    ready = make_context(json_output=json_output, parent_watch=parent_watch)
    from minga.cli.terminal.peer_options import peer_options
    from minga.cli.watching.open_dashboard import checked_settings
    from minga.cli.watching.watch import run_watch

    settings = checked_settings(listen, public=public, url=url)
    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=directory, host=bind)
    run_watch(link, peer, settings, identity, ready, organises=organise)
