"""Pausing: `minga join LINK --pause`, and the rules by which a machine pauses by itself."""

from __future__ import annotations

from pathlib import Path

from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.keeping.availability import AvailabilityRules, DailyHours, TrafficLimit, listeners, set_paused
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder


def availability_rules(only: str | None, max_traffic: str | None, *, pause_on_battery: bool) -> AvailabilityRules:
    """The rules that the options of `minga join` say. Raises `ConfigurationError`."""
    return AvailabilityRules(
        None if only is None else DailyHours.parse(only),
        None if max_traffic is None else TrafficLimit.parse(max_traffic),
        pause_on_battery,
    )


def run_pause(link: str, directory: Path | None, context: Context, *, paused: bool) -> None:
    """Let the peers of this machine that take part in the run pause, or go on."""
    parsed = Link.parse(link)
    folder = runs_folder(directory) / parsed.run_id[:FOLDER_DIGITS]
    if not folder.is_dir():
        raise ConfigurationError(f"this machine takes no part in that run: there is no folder {folder}")
    changed, here = set_paused(folder, paused=paused), listeners(folder)
    if paused and here:
        context.output.say("The peers of this machine leave the run within a step. To go on: minga join LINK --resume")
    elif paused:
        context.output.say(
            "No `minga join` of this machine takes part in the run now. One that is started waits, until: "
            "minga join LINK --resume"
        )
    elif changed:
        context.output.say("The peers of this machine go on." if here else "This machine may take part again.")
    else:
        context.output.say("This run was not paused.")
    context.output.summary(ok=True, run_id=parsed.run_id, paused=paused, changed=changed, peers=here)
