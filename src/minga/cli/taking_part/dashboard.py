"""`minga dashboard LINK`, a monitor of its own that serves the dashboard, and what `minga host --dashboard` shares."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from minga.cli.commands import DashboardCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.qr import code_of, in_terminal
from minga.identity.keys.key_file import FileLock
from minga.monitor.history import FILE_NAME, RECORD_FILE, History, HistoryServer
from minga.monitor.watcher import Watcher

try:
    from minga.dashboard.dashboard import Dashboard
    from minga.dashboard.settings import DEFAULT_PORT, DashboardSettings
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ConfigurationError(
        f'the dashboard needs the package {package}: python -m pip install ".[dashboard]" in the source of minga'
    ) from error

FOLDER, LOCK = "dashboard", "lock"
LOOK_S = 0.25


def run_watch(options: DashboardCommand, context: Context) -> None:
    """Serve until Ctrl-C."""
    settings = checked_settings(options.listen, public=options.public, url=options.url)
    with (
        options.looking_into(options.link, context, with_files=False) as joined,
        _kept_by_one(folder := joined.directory / FOLDER) as keeps,
    ):
        watcher = Watcher(joined, History(folder / FILE_NAME if keeps else None, most_remembered=0))
        if not keeps:
            context.output.say("Another dashboard of this machine keeps a record of the run; this one keeps none.")
        joined.on_loop(lambda: HistoryServer(joined.session.node, [folder / FILE_NAME, folder / RECORD_FILE]))
        dashboard = Dashboard(joined, watcher, settings, directory=folder, keeps=keeps, gaps_from=joined.directory)
        with served(dashboard, context.output):
            while not context.is_over(0):
                watcher.look()
                time.sleep(LOOK_S)
    context.output.summary(ok=True)


@contextlib.contextmanager
def _kept_by_one(folder: Path) -> Iterator[bool]:
    """Whether this process keeps the record in this folder; not if another does: what both wrote would count twice."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
        lock = FileLock.try_acquire(folder / LOCK)
    except OSError:  # the disk refuses, of which the history tells, or has no locks
        yield True
        return
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def checked_settings(listen: str, *, public: bool, url: str | None) -> DashboardSettings:
    """The settings that the options say. Raises `ConfigurationError`."""
    return DashboardSettings.listening(listen, public=public, url=url)


@contextlib.contextmanager
def served(dashboard: Dashboard, output: Output, *, show_qr: bool = False) -> Iterator[None]:
    """The dashboard is served meanwhile, and it is said where."""
    try:
        dashboard.start()
        _announce(dashboard, output, show_qr=show_qr)
        yield
    finally:
        dashboard.close()


def _announce(dashboard: Dashboard, output: Output, *, show_qr: bool) -> None:
    settings = dashboard.settings
    output.event("dashboard", url=dashboard.url, urls=dashboard.urls, join_url=dashboard.join_url)
    output.say(f"The dashboard: {dashboard.url}")
    for url in dashboard.urls[1:]:
        output.say(f"           or: {url}")
    if settings.is_local:
        option = f"--listen 0.0.0.0:{DEFAULT_PORT} (of minga host: --dashboard-listen)"
        output.say(f"Only this machine reaches it. For others, add {option}.")
    elif settings.public:
        output.say("Every person who reaches this address may look.")
    else:
        output.say("Viewers need this address with its token.")
    if dashboard.join_url is not None and not settings.is_local:
        output.say(f"Every person who reaches this address finds the link there, and can join: {dashboard.join_url}")
        if show_qr and output.interactive:
            output.console.file.write(in_terminal(code_of(dashboard.join_url)) + "\n")
