"""`minga dashboard LINK`: a monitor of its own that serves the dashboard."""

from __future__ import annotations

import time
from pathlib import Path

from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Output
from minga.cli.terminal.peer_options import wire
from minga.cli.watching.open_dashboard import announce_dashboard
from minga.core.errors import StorageError
from minga.dashboard.dashboard import Dashboard
from minga.dashboard.settings import DashboardSettings
from minga.monitor.history import FILE_NAME, RECORD_FILE, History, HistoryServer
from minga.monitor.watcher import Watcher
from minga.training.join import PeerOptions, join
from minga.training.organiser import Organiser, desk_in

FOLDER = "dashboard"
LOOK_S = 0.25


def run_watch(
    link: str,
    peer: PeerOptions,
    settings: DashboardSettings,
    identity: Path | None,
    context: Context,
    *,
    organises: bool,
) -> None:
    """Serve until Ctrl-C."""
    context.output.say("Looking for the run …")
    with join(link, peer, with_files=False) as joined:
        wire(context, joined)

        def desk() -> Organiser:
            return desk_in(joined, identity)

        if organises:
            desk()  # the key is here, or the command ends with what is missing
        directory = joined.directory / FOLDER
        watcher = Watcher(joined, History(directory / FILE_NAME, most_remembered=0))
        earlier = [joined.directory / name for name in (FILE_NAME, RECORD_FILE)]  # a host on this machine keeps them
        joined.on_loop(lambda: HistoryServer(joined.session.node, (directory / FILE_NAME, directory / RECORD_FILE)))
        dashboard = Dashboard(
            joined, watcher, settings, directory=directory, earlier=earlier, desk=desk if organises else None
        )
        try:
            dashboard.start()
            announce_dashboard(dashboard, context.output)
            while not (context.parent_watch is not None and context.parent_watch.is_over(0)):
                look(watcher, context.output)
                time.sleep(LOOK_S)
        finally:
            dashboard.close()
    context.output.summary(ok=True)


def look(watcher: Watcher, output: Output) -> None:
    """Look at the run. A full disk ends the history on it, not the dashboard: viewers see what is in memory."""
    try:
        watcher.look()
    except StorageError as error:
        watcher.history.path = None
        output.say(f"No history is kept from now on: {error}")
