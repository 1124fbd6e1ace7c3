"""Taking part in a run of the local network without its link: the host announces it, and newcomers choose it."""

from __future__ import annotations

import typer

from minga.cli.taking_part.link import KEY_DIGITS
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec

try:
    from minga.network.lan import LOOK_S, NearbyRun, find_runs
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"a local network is searched by the package {error.name}: python -m pip install {error.name}; without it take "
        "part by a LINK"
    ) from error

_CARE = (
    "Every machine of this network can announce a run under any name: compare the organiser's key with the one that "
    "the organiser shows."
)


def check_announced(spec: RunSpec) -> None:
    """Raise `ConfigurationError` for a run whose link opens it to nobody."""
    if spec.security.admission == "members":
        raise ConfigurationError(
            "--announce-lan: this run is for members, and its link admits nobody; hand out invitations instead"
        )


def choose_run(host: str | None, output: Output) -> str:
    """The link of a run of this local network that the person at the terminal chooses.

    Without a terminal the runs are listed and the command ends: which machine announces one is not verified. Raises
    `ConfigurationError` if there is none.
    """
    output.say("Looking for runs in this local network …")
    runs = find_runs(host)
    if not runs:
        raise ConfigurationError(
            f"no run was announced in this local network within {LOOK_S:.0f} s: name the LINK of a run, or ask its "
            "organiser for --announce-lan"
        )
    for number, run in enumerate(runs, 1):
        output.say(f"{number:3}  {run.name}   organiser's key {run.link.organiser[:KEY_DIGITS]}")
    output.say(_CARE)
    if output.can_ask:
        return str(runs[_asked(len(runs)) - 1].link)
    _list(runs, output)
    raise typer.Exit


def _asked(count: int) -> int:
    while True:
        number = int(typer.prompt("Take part in number", type=int, default=1 if count == 1 else None))
        if 1 <= number <= count:
            return number


def _list(runs: list[NearbyRun], output: Output) -> None:
    output.say("There is no terminal to choose at. To take part in one of them:")
    for run in runs:
        output.say_whole(f"minga join {run.link}")
    output.summary(
        ok=True,
        runs=[
            {"name": run.name, "organiser": run.link.organiser, "run_id": run.link.run_id, "link": str(run.link)}
            for run in runs
        ],
    )
