"""`minga host`: begin a run, or go on with one, and stay as its monitor, seed and auxiliary."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from minga.averaging.strategy_choice import phases_in_words
from minga.cli.commands import HostCommand
from minga.cli.taking_part.link import HostLink, relay_line
from minga.cli.taking_part.session import GracefulLeave, HeldOut, LastCheckpoint, farewell_of_host, on_disk
from minga.cli.taking_part.status import CompletionNotice, run_view
from minga.cli.terminal.context import Context, apply_threads, collect_again, tell_cautions
from minga.cli.terminal.declaring import refuse
from minga.cli.terminal.exit_codes import done_so_far, farewells
from minga.cli.terminal.options import MODEL_IS_CUT, OF_WHOLE_MODELS, own_run
from minga.cli.terminal.output import Display, Output, Ticker
from minga.core.errors import ConfigurationError, IdentityError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted
from minga.identity.keys.keys import Identity
from minga.integrations.loggers import LoggerChoice, RunLog
from minga.keeping.known_runs import ChosenStrategy, known_run, known_runs
from minga.keeping.rejoin import SPEC_FILE
from minga.monitor.history import FILE_NAME, RECORD_FILE, History, HistoryServer
from minga.monitor.watcher import Watcher
from minga.planner.auto_choice import with_chosen_strategy
from minga.recipes.init_from import prepared_files
from minga.recipes.registry import CUSTOM, load_recipe, pinned, spelled_out
from minga.recipes.running.run import RecipeRun, begin_run
from minga.training.host import host
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.plugins_of_run import with_origins

if TYPE_CHECKING:
    from minga.dashboard.settings import DashboardSettings
    from minga.network.lan import LanAnnouncement


FOLLOW_S = 0.1
"""How long, in seconds, Ctrl-C may wait for a moment in which the model is at rest."""

NOTHING_KEPT = (
    "As a monitor this host has no model: it keeps no checkpoints and archives none. The peers that train keep theirs."
)


def run_host(options: HostCommand, context: Context) -> None:
    """Begin the run of a spec, or go on with the one of a folder; stay until it ends or Ctrl-C comes."""
    path, output = _named(options), context.output
    peer, loggers = options.peer_options(), tuple(map(LoggerChoice.parse, options.log_to))
    shown: DashboardSettings | None = None
    if options.dashboard:
        from minga.cli.taking_part.dashboard import checked_settings

        shown = checked_settings(options.dashboard_listen, public=options.dashboard_public, url=options.dashboard_url)
    known = known_run(path) if path.is_dir() else None
    chosen = ChosenStrategy.read(path) if known else None
    if known is None:
        options.check_port()
        spec, chosen = _read_spec(path, options.peers)
    else:
        spec = known.spec
    if chosen is not None:
        output.event("chosen_strategy", strategy=chosen.strategy, reason=chosen.reason)
        output.say(f"Auto: {chosen.reason}.")
    if known is None and (phases := phases_in_words(spec)):
        output.say(f"Phases of this run: {phases}.")
    if options.begin_from is not None:
        source = own_run(options.begin_from, options.directory)
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"init_from": source})})
    peer = _in_its_role(peer, spec)
    if spec.split.is_on:
        refuse(options, (*OF_WHOLE_MODELS, "micro_batch"), MODEL_IS_CUT)
    if options.announce_lan:
        from minga.cli.taking_part.nearby import check_announced

        check_announced(spec)
    if relays := relay_line(spec, peer.host):
        output.say(relays)
    if peer.role == "monitor":
        output.say(NOTHING_KEPT)
        output.event("keeps.nothing", role=peer.role)
    apply_threads(options.threads)
    if known is not None:
        output.event("resumed", run_id=known.signed.run_id, step=known.step, age_s=round(known.age_s, 1))
        output.say(Text.assemble("Going on with ", (spec.name, "bold"), f": {known.progress}."))
        if known.step is None and peer.role == "monitor":
            output.say("A monitor keeps no state: a peer that trained has to bring it. If none did, host a new run.")
        elif known.step is None and not spec.split.is_on:
            output.say("It begins at step 0, unless a peer that has its state is there.")
        output.say("Looking for peers of the run, for up to a minute if they are gone …")
        hosting = host(None, peer, resume=path, gives_state=True)
    else:
        output.say(Text.assemble("Preparing ", (spec.name, "bold"), " …"))
        _name_earlier_run(spec.name, peer.runs_directory, options.identity, output)
        spec = pinned(spec)
        whole = spelled_out(spec)  # which says what cannot be used, before files are prepared
        hosting = host(whole, peer, files=prepared_files(spec), gives_state=True)
    with contextlib.ExitStack() as undone, hosting as hosted:
        is_temporary = known is None and peer.ephemeral and peer.directory is None

        def keep() -> None:
            undone.pop_all()
            farewells.append(partial(farewell_of_host, hosted, peer, is_temporary=is_temporary))

        if known is not None:
            keep()
        else:  # a run that has no state yet is none to go on with
            undone.callback(shutil.rmtree, hosted.directory, ignore_errors=True)
        context.wire(hosted)
        if hosted.awaits_first_state:
            begin_run(hosted)
        if chosen is not None:
            chosen.write(hosted.directory)
        tell_cautions(hosted.spec, output)
        with (
            contextlib.closing(RunLog(loggers)) as log,
            _lan(hosted, options) as lan,
            _watched(hosted, shown, output, is_new=known is None, show_qr=options.qr) as watcher,
        ):
            link = HostLink(
                hosted,
                output,
                # The dashboard's page for newcomers has a code, which was shown.
                show_qr=options.qr and (shown is None or shown.is_local),
                landing_page=options.landing_page,
                bound_to=options.bind,
                lan=lan,
            )
            log.begin(hosted.spec, hosted.directory)
            watcher.history.listeners.append(log)
            _Hosting(hosted, options, context, watcher, keep, link).run()


def _named(options: HostCommand) -> Path:
    """The run spec, or the folder of the run to go on with. Raises `ConfigurationError`."""
    here = Path.cwd()
    if options.run is None and not (here / SPEC_FILE).is_file():
        raise ConfigurationError("name a run spec, such as run.toml; `minga new albert > run.toml` makes one")
    path = here if options.run is None else Path(own_run(str(options.run), options.directory))
    if path.is_dir() and (options.begin_from is not None or options.peers is not None):
        raise ConfigurationError(f"--from and --peers are for a run that begins, and {path} is the folder of one")
    return path


def _in_its_role(peer: PeerOptions, spec: RunSpec) -> PeerOptions:
    """The options with the role that a host has in this run. Raises `ConfigurationError` if it cannot have the wanted
    one.
    """
    if spec.model.recipe == CUSTOM:
        if peer.role not in ("monitor", "auxiliary"):
            raise ConfigurationError(
                'model.recipe = "custom" has no model that this command could train; host it with --role monitor'
            )
        return replace(peer, role="monitor")
    if spec.split.is_on or spec.model.recipe == "split":
        from minga.recipes.split.taking_part import split_recipe

        split_recipe(spec)
        if peer.role not in ("auxiliary", "trainer"):
            raise ConfigurationError(f"--role {peer.role}: who hosts a run whose model is cut has the server's part")
        return replace(peer, role="trainer")
    if spec.security.verification == "byzantine" and peer.role == "auxiliary":
        return replace(peer, role="trainer")  # nobody can do without gradients there and have a say
    return peer


def _read_spec(path: Path, expected_peers: str | None) -> tuple[RunSpec, ChosenStrategy | None]:
    """The spec of a run that begins, complete: to prepare the files can take minutes. With what "auto" became."""
    written = RunSpec.from_file(path)
    if written.model.recipe != CUSTOM:
        load_recipe(written, str(path))  # a mistake in its table is told by the file, as all others are
    spec, reason = with_chosen_strategy(written, expected_peers)
    if reason:
        return with_origins(spec), ChosenStrategy(spec.training.strategy, reason)
    if expected_peers is not None:
        raise ConfigurationError('--peers: only for a run spec with training.strategy = "auto", which they decide')
    return with_origins(spec), None


@contextlib.contextmanager
def _watched(
    peer: Peer, shown: DashboardSettings | None, output: Output, *, is_new: bool, show_qr: bool
) -> Iterator[Watcher]:
    """What watches the run and keeps its history; meanwhile, if settings are given, the dashboard is served."""
    watcher = Watcher(peer, History(peer.directory / FILE_NAME, most_remembered=0), from_start=is_new)
    paths = [peer.directory / name for name in (FILE_NAME, RECORD_FILE)]
    peer.on_loop(lambda: HistoryServer(peer.session.node, paths))
    if shown is None:
        yield watcher
        return
    from minga.cli.taking_part.dashboard import served
    from minga.dashboard.dashboard import Dashboard

    dashboard = Dashboard(peer, watcher, shown, directory=peer.directory, is_organisers=True)
    with served(dashboard, output, show_qr=show_qr):
        yield watcher


@contextlib.contextmanager
def _lan(peer: Peer, options: HostCommand) -> Iterator[LanAnnouncement | None]:
    """What announces the run in the local network, where that is wanted."""
    if not options.announce_lan:
        yield None
        return
    from minga.network.lan import LanAnnouncement

    with contextlib.closing(LanAnnouncement(peer.spec.name, options.bind)) as lan:
        yield lan


def _name_earlier_run(name: str, runs: Path, identity: Path | None, output: Output) -> None:
    """Tell people who meant to go on with a run of theirs that they begin another one."""
    for run in known_runs(runs):
        with contextlib.suppress(IdentityError):  # without its key nobody can host it
            if run.spec.name == name and Identity.stored(identity, {run.signed.organiser}):
                output.say(
                    f"This begins a new run. To go on with the one of this name ({run.progress}), end this command and "
                    f"type: minga host {run.directory}"
                )
                return


class _Hosting:
    """One `minga host`: it calls `keep` once the run has its state, or needs none of this machine, and announces the
    `link` when it is ready for others.
    """

    def __init__(
        self,
        peer: Peer,
        work: HostCommand,
        context: Context,
        watcher: Watcher,
        keep: Callable[[], None],
        link: HostLink,
    ) -> None:
        self.peer, self.work, self.context, self.output = peer, work, context, context.output
        self._keep, self._link = keep, link
        self.watcher = watcher
        self.held_out: HeldOut | None = None

    def run(self) -> None:
        """Show the link and stay."""
        if self.peer.role == "monitor":
            collect_again()
            self._keep()
            self._link.announce()
            with Ticker(self.output, self._look) as ticker:
                self._watch(ticker.check)
            return
        if self.peer.spec.split.is_on:
            self._serve()
        else:
            self._run_replica()

    def _serve(self) -> None:
        """Have the server's part of a model that is cut, until Ctrl-C."""
        from minga.recipes.split.taking_part import ServerRun

        run = ServerRun(self.peer)
        try:
            self._keep()
            collect_again()
            if run.resumes:
                self.output.say("It goes on with the server's part that is in its folder.")
            self._link.announce()
            with Ticker(self.output, self._look) as ticker:
                while not self.context.is_over(run.server.status.steps):
                    ticker.check()
                    run.save_if_due()
                    time.sleep(0.1)
            done = run.server.status
        finally:
            run.close()
        served = f"Served {counted(done.steps, 'batch', 'batches')} of {counted(done.clients, 'client')}."
        self.output.say(f"{served} The server's part: {run.path}")
        self.output.summary(ok=True, batches=done.steps, samples=done.samples, clients=done.clients, file=str(run.path))

    def _watch(self, between: Callable[[], None]) -> None:
        """As a monitor: say once that the run is complete, and stay, so that others can look at it, until Ctrl-C."""
        said = CompletionNotice(self.output)
        self.watcher.listeners.append(lambda look: said.look(look.status))
        while not self.context.is_over(0):
            between()
            time.sleep(0.2)

    def _run_replica(self) -> None:
        leaving, last_words = GracefulLeave(self.peer, self.context), LastCheckpoint(self.peer, self.context)

        def is_over(step: int) -> bool:
            return last_words.is_wanted or leaving.is_over(step) or self.context.is_over(step)

        run = RecipeRun(self.peer, self.work.work())
        self._keep()
        done_so_far.append(lambda: {"step": run.step, **on_disk(self.peer.directory)})
        held_out = self.held_out = HeldOut(run, self.output, self.watcher.history)
        held_out.now()
        collect_again()
        self._link.announce()
        with Ticker(self.output, self._look) as ticker:

            def between() -> None:
                ticker.check()
                held_out.if_due()

            if self.peer.role == "auxiliary":
                run.follow(is_over, between, seconds=FOLLOW_S)
            else:
                run.train(is_over, lambda *_: between())
            last_words.write(run)
            held_out.now()
            run.optimizer.save_checkpoint()
            self._summarise(run, held_out)
            if run.finished:
                self.output.say(
                    f"The run is complete after {counted(run.step, 'step')}. Its state stays available until "
                    "Ctrl-C, which is safe now."
                )
                while not self.context.is_told_to_end:
                    ticker.check()
                    last_words.write(run)
                    time.sleep(0.2)

    def _summarise(self, run: Any, held_out: HeldOut) -> None:
        self.output.summary(
            ok=True,
            step=run.step,
            finished=run.finished,
            digest=run.optimizer.digest(),
            headline=run.recipe.headline.name,
            first=held_out.first,
            last=held_out.latest,
            directory=str(self.peer.directory),
        )

    def _look(self) -> Display:
        return run_view(self.watcher.look(), self.held_out.latest if self.held_out else None)
