"""A dashboard: web pages about a run, served by a process that takes part in it or watches it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from minga.core.errors import ClosedError, ConfigurationError, MingaError
from minga.core.events.bus import Event
from minga.core.files import write_atomically
from minga.core.wheel import own_wheel
from minga.dashboard.live_run import LiveRun
from minga.dashboard.recorder import RunRecorder
from minga.dashboard.server.answers import Answers, LiveFeed
from minga.dashboard.server.guard import JOIN
from minga.dashboard.server.join_answers import JoinAnswers
from minga.dashboard.server.web_server import WebServer, make_app
from minga.dashboard.settings import DashboardSettings
from minga.monitor.history import FILE_NAME, RECORD_FILE, Entry, History, fill_gaps, read_history, told_since
from minga.monitor.watcher import Watcher
from minga.training.peer import Peer
from minga.training.status.status_reader import Look

RECORD_BYTES: Final = 48 << 20
LEADERBOARD_FILE: Final = "leaderboard.json"
KEEP_PERIOD_S: Final = 60.0
RECEIPTS_PERIOD_S: Final = 120.0
"""How often receipts are added up; a monitor asks a member for them."""
TICK_S: Final = 1.0
PEERS_PER_SECOND: Final = 250
"""How many peers a look may have for each second until the next: the cost of looks does not grow with the swarm."""
HOST_PERIOD_S: Final = 15.0
"""How often a monitor asks a peer that keeps a history for what it cannot see itself."""

OF_MEMBERS: Final = ("evaluation", "round", "missed", "suspected", "accused", "banned", "admitted", "regrouped")
"""Entries that only a peer that takes part records."""

LEAVE_S: Final = 1.5


class Dashboard:
    """Listens from its making on, and serves from `start` until `close`.

    `watcher` looks at the run; each of its looks comes here, too.

    What was recorded lies in `directory`, beside the watcher's history, and is read from there; if this dashboard
    `keeps` a record, that is written there, else it stays in memory. `gaps_from` is the folder of another process of
    this machine that keeps a history, for the time of which `directory` tells nothing.
    `is_organisers`: the organiser's own host serves it.
    Raises `ConfigurationError` if it cannot listen.
    """

    def __init__(
        self,
        peer: Peer,
        watcher: Watcher,
        settings: DashboardSettings,
        *,
        directory: Path | None,
        keeps: bool = True,
        gaps_from: Path | None = None,
        is_organisers: bool = False,
    ) -> None:
        self.settings = settings
        self._peer, self._watcher, self._directory = peer, watcher, directory
        self._keeps, self._gaps_from = keeps, gaps_from
        self._server = WebServer(settings.host, settings.port)
        self._urls = [settings.url.rstrip("/")] if settings.url is not None else self._server.urls
        own = own_wheel() if peer.spec.network.source_url is None else None
        is_theirs = own is not None and (is_organisers or own.reference == peer.spec.wheel)
        self._wheel = own if is_theirs else None
        """What it hands out to newcomers: code of the organiser, and of nobody else."""
        self._run = LiveRun(only_watches=peer.role == "monitor")
        self._asked_s = 0.0
        """The time up to which others told what they have recorded."""
        record = directory / RECORD_FILE if keeps and directory is not None else None
        self._record = History(record, max_bytes=RECORD_BYTES, most_remembered=0)
        self._recorder = RunRecorder(self._record, peer.peer_id)
        self._feed = LiveFeed()
        self._taken_s = 0.0
        self._unsubscribe: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._serve, name="minga-dashboard", daemon=True)

    @property
    def urls(self) -> list[str]:
        """Where viewers find it, the best address first; with the read token, where they need one."""
        token = f"?token={self.settings.read_token}" if self.settings.needs_token else ""
        return [f"{address}/{token}" for address in self._urls]

    @property
    def url(self) -> str:
        """The first of these."""
        return self.urls[0]

    @property
    def join_url(self) -> str | None:
        """Where newcomers find out how to take part, without a token; None in a run for members."""
        return f"{self._urls[0]}{JOIN}" if self._peer.spec.security.admission == "open" else None

    def start(self) -> None:
        """Take up what was recorded before, and serve; call `close` also if this fails.

        Raises `ClosedError` if the peer was closed, and `LocalError` if the server cannot be started.
        """
        self._take_up()
        self._thread.start()
        self._server.wait_until_started()
        self._record.listeners.append(self._run.take_entry)
        self._watcher.history.listeners.append(self._on_entry)
        self._watcher.listeners.append(self._on_look)
        self._unsubscribe = self._peer.on_loop(lambda: self._peer.subscribe(self._on_event))

    def close(self) -> None:
        """End the server; may be called twice, and after the peer was closed."""
        for listeners, own in (
            (self._watcher.history.listeners, self._on_entry),
            (self._watcher.listeners, self._on_look),
        ):
            if own in listeners:
                listeners.remove(own)  # type: ignore[arg-type]  # each its own kind
        self._unsubscribe()
        self._unsubscribe = lambda: None
        self._server.stop()
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)

    # ---- what comes in, on other threads

    def _on_look(self, look: Look) -> None:
        period_s = max(0.9, len(look.status.peers) / PEERS_PER_SECOND)
        if 0.0 <= look.time_s - self._taken_s < period_s:
            return
        self._taken_s = look.time_s
        names = self._names()
        self._server.on_loop(self._take_look, look, names)

    def _on_entry(self, entry: Entry) -> None:
        self._server.on_loop(self._run.take_entry, entry)

    def _on_event(self, event: Event) -> None:
        self._server.on_loop(self._take_event, time.time(), event)

    def _names(self) -> Mapping[str, str]:
        """The names under which people logged in; nobody has one in an open run."""
        if self._peer.spec.security.admission != "members":
            return {}
        session = self._peer.session
        try:
            return self._peer.on_loop(
                lambda: {peer: each.access.name for peer, each in session.admission.members().items()}
            )
        except ClosedError:
            return {}

    # ---- on the server's thread

    def _take_look(self, look: Look, names: Mapping[str, str]) -> None:
        self._run.take_look(look, names)
        self._recorder.on_look(look)

    def _take_event(self, time_s: float, event: Event) -> None:
        self._recorder.on_event(time_s, event)

    def _serve(self) -> None:
        def make() -> ASGIApp:
            answers = Answers(self._run, self._feed)
            joining = JoinAnswers(self._peer, self._run, self.settings, self._urls, self._wheel)
            return make_app(self.settings, answers, joining)

        self._server.run(make, self._beside, self._feed.close)

    async def _beside(self) -> None:
        """Work beside the answers, until the server ends."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                tasks.create_task(self._add_up_receipts())
                if self._run.only_watches:
                    tasks.create_task(self._ask_others())
        finally:
            self._keep_leaderboard()

    async def _add_up_receipts(self) -> None:
        """Beside all else, since a monitor may wait for a member for long."""
        while True:
            if self._run.look is None:
                await asyncio.sleep(TICK_S)
                continue
            with contextlib.suppress(MingaError):  # no member answers, or this peer was closed
                self._run.take_attested(await asyncio.to_thread(self._peer.receipts))
            await asyncio.sleep(RECEIPTS_PERIOD_S)

    async def _ask_others(self) -> None:
        """As a monitor: rounds, misses and held-out figures are what a peer that takes part tells of them."""
        while True:
            await asyncio.sleep(HOST_PERIOD_S)
            with contextlib.suppress(MingaError):  # this peer was closed
                for entry in await asyncio.to_thread(self._missed_since, self._asked_s):
                    if entry["event"] in OF_MEMBERS:
                        self._record.put(entry)

    async def _tick(self) -> None:
        """Tell viewers what changed, and keep the leaderboard on disk."""
        kept_s, told_s = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(TICK_S)
            look = self._run.look
            if look is not None and self._feed.viewers and look.time_s != told_s:
                told_s = look.time_s
                if (live := self._run.live()) is not None:
                    self._feed.publish(live)
            if time.monotonic() - kept_s > KEEP_PERIOD_S:
                kept_s = time.monotonic()
                self._keep_leaderboard()

    # ---- what lasts

    def _take_up(self) -> None:
        """Read what was written before; a monitor asks others for the time since, and draws the run from both. What
        they tell is written, too: the next start asks for what comes after it. Who takes part asks nobody: a
        stranger's word of a step far ahead would hold its count of samples for good.
        """
        entries = fill_gaps(_entries_in(self._directory), _entries_in(self._gaps_from))
        now_s = time.time()  # this machine's clock may have been ahead
        self._asked_s = max((float(entry["t"]) for entry in entries if entry["t"] <= now_s), default=0.0)
        for entry in entries:
            self._run.take_entry(entry)
        for entry in self._missed_since(self._asked_s) if self._run.only_watches else ():
            self._run.take_entry(entry)
            self._record.put(entry)
        if any(known := self._run.model.samples_at_step):
            self._watcher.know_samples(*known)
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._run.contributions.decode((self._directory / LEADERBOARD_FILE).read_bytes())

    def _missed_since(self, since_s: float) -> list[Entry]:
        """What a peer that keeps a history tells about the time since."""
        found = told_since(self._peer, since_s)
        newest_s = max([self._asked_s, *(float(entry["t"]) for entry in found)])
        self._asked_s = min(newest_s, time.time())  # the clock may have been set back
        return found

    def _keep_leaderboard(self) -> None:
        if self._directory is None or not self._keeps or self._run.look is None:
            return
        with contextlib.suppress(OSError):  # a full disk is told of by the record already
            write_atomically(self._directory / LEADERBOARD_FILE, self._run.contributions.encode())


def _entries_in(folder: Path | None) -> list[Entry]:
    """The entries of the histories in this folder, as far as they are there, in order of time."""
    entries: list[Entry] = []
    for path in () if folder is None else (folder / FILE_NAME, folder / RECORD_FILE):
        with contextlib.suppress(ConfigurationError):  # there is none yet
            entries += read_history(path)
    return sorted(entries, key=lambda entry: float(entry["t"]))
