"""The commands of organisers that change a running run, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.access.members_app import Key, organiser_options
from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, Json, LinkArgument

AtStep = Annotated[
    int | None, typer.Option("--at-step", help="From which global step on (default: soon).", show_default=False)
]
OrderFile = Annotated[Path | None, typer.Option("--order", help="A file that several organisers pass around to sign.")]


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (amend, pause, resume, stop):
        app.command()(command)


def amend(
    link: LinkArgument,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as optimizer.learning_rate=0.001.", show_default=False),
    ] = None,
    at_step: AtStep = None,
    order: OrderFile = None,
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: change settings of a running run, for all members at one step."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.amend import AmendOptions, parse_changes, run_amend

    desk = organiser_options(identity, directory, bind)
    run_amend(link, parse_changes(changes or ()), AmendOptions(at_step, order), desk, ready)


def pause(
    link: LinkArgument,
    at_step: AtStep = None,
    order: OrderFile = None,
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: let the run hold its state; members stay connected and take no step."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.amend import AmendOptions, run_pause

    run_pause(link, AmendOptions(at_step, order), organiser_options(identity, directory, bind), ready)


def resume(
    link: LinkArgument,
    with_present: Annotated[
        bool,
        typer.Option(
            "--with-present",
            help="The run lost more than half of its members at once, for good: go on with those that are there.",
        ),
    ] = False,
    order: OrderFile = None,
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: let a paused run go on, or one that lost the majority of its members at once."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.amend import AmendOptions, run_regroup, run_resume

    go_on = run_regroup if with_present else run_resume
    go_on(link, AmendOptions(None, order), organiser_options(identity, directory, bind), ready)


def stop(
    link: LinkArgument,
    at_step: AtStep = None,
    wait: Annotated[bool, typer.Option(help="Stay until it has ended, for two minutes at most.")] = True,
    order: OrderFile = None,
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: end the run, at one step for all members."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.amend import AmendOptions, run_stop

    run_stop(link, AmendOptions(at_step, order, waits=wait), organiser_options(identity, directory, bind), ready)
