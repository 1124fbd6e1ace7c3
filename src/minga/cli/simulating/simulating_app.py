"""The commands of simulations, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import collect_again, make_context
from minga.cli.terminal.options import Json


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (sim, replay):
        app.command()(command)


def sim(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|NAME", help="A scenario in TOML, or one that comes with minga.", show_default=False
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value, such as peers.home.count=20; may be repeated."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=A,B,C", help="One run for each value; several: for each combination."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw loss, round anatomy, peers and traffic into this folder.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write the event log, for `minga replay`.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the scenarios that come with minga, and exit.")] = False,
    json_output: Json = False,
) -> None:
    """Run a swarm on virtual time: the code that real peers run, with simulated lines, churn and faults."""
    if source is None and not listed:
        raise typer.BadParameter(
            "name a scenario, such as home-150; `minga sim --list` names those that come with minga"
        )
    ready = make_context(json_output=json_output, slow_imports=True)
    from minga.cli.simulating.sim import SimOptions, list_scenarios, run_sim

    collect_again()
    if source is None or listed:
        list_scenarios(ready)
        return
    raise typer.Exit(run_sim(source, SimOptions(tuple(changes or ()), tuple(sweep or ()), plot, log), ready))


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="What `minga sim --log` wrote.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=1, help="Only this step, with all that happened in it.")] = None,
    json_output: Json = False,
) -> None:
    """Show a simulation step by step: who led, who took part, where the time went, faults and recoveries."""
    ready = make_context(json_output=json_output)
    from minga.cli.simulating.replay import run_replay

    run_replay(log, step, ready)
