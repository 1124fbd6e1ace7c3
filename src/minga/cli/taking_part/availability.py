"""When this machine takes part: by its owner's rules, and by `minga join LINK --pause` and `--unpause` from another
terminal; these two import nothing of training, so they work at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from minga.cli.commands import JoinCommand
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration
from minga.identity.links.links import Link
from minga.keeping.availability import (
    Availability,
    AvailabilityRules,
    DailyHours,
    TrafficLimit,
    listeners,
    listening,
    set_paused,
)
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder

POLL_S = 1.0
"""How often the rules of this machine's owner are looked at."""


def run_pause(options: JoinCommand, context: Context) -> None:
    """Let the peers of this machine that take part in the run pause, or go on."""
    parsed, paused = Link.parse(str(options.link)), options.pause
    folder = runs_folder(options.directory) / parsed.run_id[:FOLDER_DIGITS]
    if not folder.is_dir():
        raise ConfigurationError(f"this machine takes no part in that run: there is no folder {folder}")
    changed, here = set_paused(folder, paused=paused), listeners(folder)
    if paused and here:
        context.output.say("The peers of this machine leave the run within a step. To go on: minga join LINK --unpause")
    elif paused:
        context.output.say(
            "No `minga join` of this machine takes part in the run now. One that is started waits, until: "
            "minga join LINK --unpause"
        )
    elif changed:
        context.output.say("The peers of this machine go on." if here else "This machine may take part again.")
    else:
        context.output.say("This run was not paused.")
    context.output.summary(ok=True, run_id=parsed.run_id, paused=paused, changed=changed, peers=here)


def rules_of(options: JoinCommand) -> AvailabilityRules:
    """The rules that the owner of this machine gave. Raises `ConfigurationError`."""
    return AvailabilityRules(
        None if options.only is None else DailyHours.parse(options.only),
        None if options.max_traffic is None else TrafficLimit.parse(options.max_traffic),
        options.pause_on_battery,
    )


@contextlib.contextmanager
def present(folder: Path) -> Iterator[Path]:
    """The folder, for word from other commands meanwhile, such as `minga join LINK --pause`; gone if nothing was kept
    in it.
    """
    with contextlib.suppress(OSError):  # joining says what is wrong with the disk
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with listening(folder):
            yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def wait_until_available(availability: Availability, context: Context) -> bool:
    """Block while the rules of this machine's owner keep it out of the run; False if this command is told to end."""
    said = ""
    while (pause := availability.pause()) is not None:
        if pause.rule != said:
            said = pause.rule
            back = "" if pause.seconds is None else f", back in {format_duration(pause.seconds)}"
            context.output.say(f"This machine pauses: {pause.why}{back}.")
            context.output.event("paused", why=pause.why, seconds=pause.seconds)
        if context.is_told_to_end:
            return False
        time.sleep(POLL_S)
    if said:
        context.output.event("resumed")
        context.output.say("This machine takes part from now on.")
    return True
