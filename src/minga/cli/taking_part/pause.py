"""`minga join LINK --pause` and `--unpause`, from another terminal: at once, without what training imports."""

from __future__ import annotations

from minga.cli.commands import JoinCommand
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.keeping.availability import listeners, set_paused
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder


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
