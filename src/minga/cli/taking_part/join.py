"""`minga join`: take part in a run with this machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from minga.cli.commands import JoinCommand
from minga.cli.taking_part.availability import POLL_S, present, rules_of, wait_until_available
from minga.cli.taking_part.first_screen import affords_probes, require_recipe, show_and_ask
from minga.cli.taking_part.link import HostWatch
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.taking_part.session import GracefulLeave, HeldOut, LastCheckpoint, farewell_of_volunteer, on_disk, thanks
from minga.cli.taking_part.status import OwnPart, run_view, shown_phase, volunteer_view
from minga.cli.terminal.context import Context, apply_threads, collect_again, tell_cautions
from minga.cli.terminal.declaring import refuse
from minga.cli.terminal.exit_codes import done_so_far, farewells
from minga.cli.terminal.options import MODEL_IS_CUT, OF_WHOLE_MODELS
from minga.cli.terminal.output import Display, Output, Ticker
from minga.core.errors import ConfigurationError, MingaError, reason_of
from minga.core.events.bus import Event
from minga.core.events.security import SecureAdmitted, SecureCandidate, SecureDropped, SecureFounded, SecureWaiting
from minga.core.events.training import AccessNotRenewed, StateAwaited, StepApplied, SyncAdvanced, SyncFinished
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import BASE_FOLDER
from minga.core.units import counted, format_size, parse_size
from minga.identity.links.links import Link
from minga.integrations.loggers import LoggerChoice, RunLog
from minga.keeping.availability import Availability, listeners
from minga.monitor.history import History
from minga.monitor.watcher import Watcher
from minga.recipes.registry import CUSTOM, check_published, load_recipe
from minga.recipes.running.devices import choose_devices, machine_name
from minga.recipes.running.local_ranks import open_run
from minga.recipes.running.micro_batch import release
from minga.recipes.running.run import RecipeRun
from minga.training.peer import Peer
from minga.training.prospect import Prospect
from minga.training.transfer.run_files import lies_in

if TYPE_CHECKING:
    import torch

    from minga.recipes.split.taking_part import ClientRun


SHARE_STEPS = 20
"""How many of the last steps the shown share is taken over."""


def run_join(options: JoinCommand, context: Context) -> None:
    """Join, fetch the state, and train until the run ends or Ctrl-C comes."""
    from minga.training.join import join

    options.check_port()
    link = options.link
    if link is None:
        from minga.cli.taking_part.nearby import choose_run

        link = choose_run(options.bind, context.output)
    peer, rules = options.peer_options(), rules_of(options)
    max_files = parse_size(options.max_files, "--max-files")
    if peer.role == "monitor":
        refuse(options, ("data", "part", "leave_after_steps"), "not with --role monitor, which trains nothing")
    if options.evaluate and peer.role == "monitor":
        raise ConfigurationError("--evaluate needs a model, which --role monitor does not have; try --role auxiliary")
    log = RunLog(tuple(map(LoggerChoice.parse, options.log_to)))
    parsed = Link.parse(link)
    apply_threads(options.threads)
    context.output.say("Looking for the run …")
    person = PersonAtTerminal(options.login, options.secret, context.output)

    probes = affords_probes(peer, rules.traffic)
    done = SessionsDone()

    will_ask = context.output.can_ask and not options.yes

    has_model = peer.role != "monitor"

    def consider(prospect: Prospect) -> Path | None:
        """Whether and how to take part in what was found; the folder where files lie that need not be fetched."""
        if has_model and prospect.completed is not None:
            tell_complete(prospect, link, done, context.output)
            raise typer.Exit
        if has_model:
            require_recipe(prospect.spec)
            _check_options(options, prospect.spec)
        if not done.is_agreed:  # the owner of this machine is asked once
            if has_model:
                tell_cautions(prospect.spec, context.output)
            costs = show_and_ask(prospect, peer, options, context.output, max_files=max_files, limit=rules.traffic)
            availability.expect_start(costs.start_bytes)
            done.is_agreed = True
            if availability.pause() is not None:
                raise _LaterError
        if options.base is not None:
            check_base(options.base, prospect.spec)
        if options.base is not None or not has_model:
            return options.base
        kept = peer.run_directory(parsed.run_id) / "files"
        missing = {
            name: entry for name, entry in prospect.spec.files.items() if lies_in(kept, name, entry.size_bytes) is None
        }
        return load_recipe(prospect.spec).elsewhere(missing)

    def take_part() -> bool:
        """Whether the session ended for a pause."""
        with join(parsed, peer, person, consider=consider, probes=probes) as joined:
            context.wire(joined)
            log.begin(joined.spec, folder)
            kind = _Client if has_model and joined.spec.split.is_on else _Joining
            return kind(joined, options, context, availability, done, log).run()

    is_paused = True
    with contextlib.closing(log), present(peer.run_directory(parsed.run_id)) as folder:
        if others := listeners(folder):
            if rules.traffic is not None:
                raise ConfigurationError(
                    "--max-traffic: another process of this machine is in this run already; a budget is of one process"
                )
            context.output.say(
                f"On this machine {counted(others, 'other process takes', 'other processes take')} part in this run "
                "already: they share its processor, its memory and its line."
            )
        availability = Availability(rules, folder, time.time)
        while is_paused:
            # Else its owner, who is there now, is asked first.
            if (done.is_agreed or not will_ask) and not wait_until_available(availability, context):
                done.tell(context.output)
                break
            with contextlib.suppress(_LaterError):
                is_paused = take_part()
                if is_paused:  # whoever uses this machine now has its memory, too
                    context.let_go()
                    if done.device is not None:
                        release(done.device)


class _LaterError(Exception):
    """The owner of this machine agreed, and its rules keep it out of the run for now."""


@dataclass
class SessionsDone:
    """What this command has done so far, in all its sessions between pauses."""

    is_agreed: bool = False
    """Whether the owner of this machine has seen the costs, and agreed if that was asked."""
    step: int = 0
    """The last one that this machine saw."""
    device: torch.device | None = None
    """The one on which this process computed last."""
    samples: int = 0
    steps: int = 0
    """Those in which this machine took part, whether it had samples for them or not."""
    contributed: int = 0
    directory: Path | None = None
    """Where its checkpoints are."""
    parts: Path | None = None
    """Where this client keeps its own, if the model is cut; its steps are batches."""

    def so_far(self) -> dict[str, int]:
        """What of it is said of a command that is interrupted."""
        if self.parts is not None:
            return {"batches": self.steps, "samples": self.samples}
        kept = {} if self.directory is None else on_disk(self.directory)
        return {"step": self.step, "steps_contributed": self.contributed, "samples": self.samples, **kept}

    def thanks(self, ended: str) -> str:
        """The last words to a volunteer."""
        if self.parts is None:
            return thanks(ended, self.contributed, self.samples)
        batches = counted(self.steps, "batch", "batches")
        return f"{ended}. This machine trained on {batches}; its parts of the model are in {self.parts}. Thank you!"

    def farewell(self, so_far: Mapping[str, int]) -> str:
        """What one reads who left by Ctrl-C."""
        if self.parts is None:
            return farewell_of_volunteer(so_far)
        return f"{self.thanks('Stopped')} To come back, type the same command again."

    def tell(self, output: Output) -> None:
        """Say what there was of it, to one who ends the command during a pause."""
        output.say(self.thanks("Stopped during a pause"))
        output.summary(ok=True, finished=False, steps_contributed=self.contributed, samples=self.samples)


def tell_complete(prospect: Prospect, link: str, done: SessionsDone, output: Output) -> None:
    """Say that there is nothing left to take part in, and how to get the model."""
    ended = f"{prospect.spec.name} is complete: step {prospect.completed} was its last one"
    left = f"{ended}. There is nothing to contribute, and nothing was downloaded."
    output.say(done.thanks(ended) if done.contributed else left)
    if prospect.spec.model.recipe != CUSTOM and not prospect.spec.split.is_on:
        output.say("While a peer that has its state is there, this gets the model:")
        output.say_whole(f"minga export {link} --out model")
    output.summary(
        ok=True, step=prospect.completed, finished=True, steps_contributed=done.contributed, samples=done.samples
    )


def check_base(folder: Path, spec: RunSpec) -> None:
    """Raise `ConfigurationError` unless each file that the run tunes is in a folder, by name and size, and readable."""
    for name, entry in spec.files.items():
        if not name.startswith(BASE_FOLDER):
            continue
        path = lies_in(folder, name, entry.size_bytes)
        if path is None:
            raise ConfigurationError(
                f"--base {folder}: no {name.removeprefix(BASE_FOLDER)} of {entry.size_bytes:,} bytes in it, which this "
                "run tunes; without --base it is downloaded"
            )
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigurationError(
                f"--base {folder}: {path.name} cannot be read ({reason_of(error)}); without --base it is downloaded"
            ) from error


def _check_options(options: JoinCommand, spec: RunSpec) -> None:
    """Raise `ConfigurationError` for options that mean nothing in this run."""
    if not spec.split.is_on:
        refuse(options, ("part",), "only in a run whose model is cut (split learning)")
        return
    from minga.recipes.split.taking_part import split_recipe

    recipe = split_recipe(spec)
    check_published(spec)
    refuse(options, (*OF_WHOLE_MODELS, "devices", "evaluate", "base"), MODEL_IS_CUT)
    if options.data:
        refuse(options, ("part",), "not with --data: this client has samples of its own, and no part of the example")
    if options.role not in ("trainer", "client"):
        raise ConfigurationError(f"--role {options.role}: choose trainer, client or monitor where the model is cut")
    if not options.data:
        recipe.client_samples({}, (options.part or 1) - 1)  # there may be no such part, or none at all


def machine(run: RecipeRun, devices: Sequence[torch.device]) -> str:
    """The devices that a run uses on this machine, how much it computes at once, and in which number format."""
    return f"{machine_name(devices)}, micro-batch {run.micro_batch_size}, {run.precision.name}"


class _Joining:
    """One session of `minga join`, up to the next pause."""

    def __init__(
        self,
        peer: Peer,
        options: JoinCommand,
        context: Context,
        availability: Availability,
        done: SessionsDone,
        log: RunLog,
    ) -> None:
        self.peer, self.options, self.context, self.output = peer, options, context, context.output
        self._availability, self._done, self._checked_at = availability, done, 0.0
        self._is_pausing = self._ends_now = False
        availability.begin_session()
        self._leaving = GracefulLeave(peer, context)
        self.held_out: HeldOut | None = None
        self._run: RecipeRun | None = None
        self._devices: list[torch.device] = []
        self.watcher = Watcher(peer, History(None, most_remembered=0))
        self.watcher.history.listeners.append(log)
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._phase = "joining"
        self._shares: deque[float] = deque(maxlen=SHARE_STEPS)
        self._sync = (0, 0)
        peer.subscribe(self._on_event)
        farewells[:], done_so_far[:] = [done.farewell], [done.so_far]  # nothing of this session alone

    def run(self) -> bool:
        """Take part, with a display beside; whether this session ended for a pause."""
        try:
            return self._share_in()
        finally:  # however it ends: what was downloaded before the first step counts, too
            with contextlib.suppress(MingaError):
                self._count_traffic()
            self._availability.end_session()

    def _share_in(self) -> bool:
        self.output.event("joined", run=self.peer.spec.name, run_id=self.peer.run_id, peer=self.peer.peer_id)
        joined = f" as {self.peer.peer_id[:10]}, {self.peer.role}."
        self.output.say(Text.assemble("Joined ", (self.peer.spec.name, "bold"), joined))
        is_alone = not self.peer.on_loop(self.peer.session.node.connected)
        if is_alone:
            link = self.peer.link
            self.output.event("alone", link=str(link))
            self.output.say(
                "Nobody of this run answers: going on alone from the checkpoint that is here. Others join by"
            )
            self.output.say_whole(f"minga join {link}")
        host = HostWatch(self.peer, self.output, said=is_alone)
        self.watcher.listeners.append(lambda look: host.look(look.status))
        with Ticker(self.output, lambda: volunteer_view(self._look())) as ticker, contextlib.ExitStack() as stack:
            if self.peer.role == "monitor":
                collect_again()
                while not self._is_over(self.watcher.look().step):
                    ticker.check()
                    time.sleep(0.5)
                return self._is_pausing
            work = self.options.work()
            self._devices = choose_devices(work.device, work.devices, self.peer.spec, self.peer.role)
            self._done.device = self._devices[0]
            if len(self._devices) > 1:
                self.output.say(f"Starting {len(self._devices)} processes, one for each device …")
            run = stack.enter_context(open_run(self.peer, self._devices, work, self._must_pause))
            if self._ends_now and not run.finished:  # the state may not be here
                return True
            collect_again()
            self._done.step, self._phase, self._run = run.step, "training", run
            self._done.directory = self.peer.directory
            self.output.say(f"This machine takes part with {machine(run, self._devices)}.")
            self.output.event(
                "ready",
                step=run.step,
                device=str(run.device),
                devices=len(self._devices),
                micro_batch=run.micro_batch_size,
                precision=run.precision.name,
            )
            self._take_part(run, ticker)
            self._phase = "finished" if run.finished else "leaving"
        if self._is_pausing and not run.finished:
            return True
        self._summarise(run)
        return False

    def _is_over(self, step: int) -> bool:
        if self._leaving.is_over(step) or self.context.is_over(step):
            return True
        most = self.options.leave_after_steps
        if most is not None and self._done.steps >= most:
            return True
        return self._must_pause()

    def _must_pause(self) -> bool:
        """Whether the rules of this machine end the session at once; where that takes a step, they only ask for it."""
        if time.monotonic() - self._checked_at >= POLL_S and not self._is_pausing:
            self._checked_at = time.monotonic()
            self._count_traffic()
            self._is_pausing = self._availability.pause() is not None
            self._ends_now = self._is_pausing and not self._leaving.ask()
        return self._ends_now

    def _count_traffic(self) -> None:
        self._availability.note_traffic(sum(self.peer.on_loop(self.peer.session.node.traffic)))

    def _take_part(self, run: RecipeRun, ticker: Ticker) -> None:
        held_out = self.held_out = HeldOut(run, self.output, self.watcher.history) if self.options.evaluate else None
        last_words = LastCheckpoint(self.peer, self.context)

        def is_over(step: int) -> bool:
            ticker.check()
            return last_words.is_wanted or self._is_over(step)

        def between() -> None:
            if held_out is not None:
                held_out.if_due()

        def on_batch(step: int, samples: int, _: float) -> None:
            with self._lock:
                self._done.step = step
                self._done.samples += samples
            between()

        if self.peer.role == "auxiliary":
            run.follow(is_over, between)
        else:
            run.train(is_over, on_batch)
        last_words.write(run)
        if run.step and not run.finished:  # after the last step it is written already
            run.optimizer.save_checkpoint()
        if held_out is not None:
            held_out.now()

    def _summarise(self, run: Any) -> None:
        seconds = time.monotonic() - self._begun
        if run.finished and not self._done.contributed:
            self.output.say(f"The run was complete already, at step {run.step}: there was nothing to contribute.")
        else:
            ended = "The run is complete" if run.finished else "Stopped"
            self.output.say(thanks(f"{ended} at step {run.step}", self._done.contributed, self._done.samples))
        self.output.summary(
            ok=True,
            step=run.step,
            finished=run.finished,
            digest=run.optimizer.digest(),
            steps_contributed=self._done.contributed,
            samples=self._done.samples,
            dropped_micro_batches=run.optimizer.dropped_micro_batches,
            seconds=round(seconds, 3),
            **({"first": self.held_out.first, "last": self.held_out.latest} if self.held_out else {}),
        )

    def _on_event(self, event: Event) -> None:
        with self._lock:
            match event.data:
                case StepApplied() as applied:
                    self._shares.append(min(1.0, applied.samples / applied.batch))
                    self._done.steps += 1
                    self._done.contributed += applied.samples > 0
                    self._done.step = applied.step
                    if self._phase == "waiting":  # those that had a later state went
                        self._phase = "training"
                case SyncAdvanced() as sync:
                    self._sync = (sync.done_bytes, sync.total_bytes)
                    self._phase = "downloading the state"
                case SyncFinished() | SecureFounded():
                    self._phase = "training"
                case SecureWaiting() | StateAwaited():
                    self._phase = "waiting"
                case SecureCandidate(peer=self.peer.peer_id):
                    self._phase = "on probation"
                case SecureDropped(peer=self.peer.peer_id):
                    self._phase = "starting over"
                case SecureAdmitted(peer=self.peer.peer_id):
                    self._phase = "training"
                case AccessNotRenewed() as refused:
                    self.output.say(f"The access to this run was not renewed: {refused.why}")

    def _look(self) -> OwnPart:
        status = self.watcher.look()
        me = next((peer for peer in status.peers if peer.is_self), None)
        paths = tuple(sorted({peer.path for peer in status.peers if peer.path is not None and not peer.is_self}))
        with self._lock:
            phase = shown_phase(self._phase, status)
            return OwnPart(
                run=status,
                samples=self._done.samples,
                samples_per_second=me.samples_per_second if me and phase != "paused" else 0.0,
                share=sum(self._shares) / len(self._shares) if self._shares else None,
                bytes_sent=(me.bytes_sent if me else None) or 0,
                bytes_received=(me.bytes_received if me else None) or 0,
                paths=paths,
                sync_done=self._sync[0],
                sync_total=self._sync[1],
                phase=phase,
                figures=self.held_out.latest if self.held_out else {},
                machine="" if self._run is None else machine(self._run, self._devices),
                traffic=self._availability.traffic,
            )


class _Client(_Joining):
    """The same where the model is cut: this machine has the client's parts, and data of its own, which stay here."""

    def _share_in(self) -> bool:
        from minga.recipes.split.taking_part import ClientRun

        options, output, done, peer = self.options, self.output, self._done, self.peer
        run = ClientRun(peer, data=options.data, number=options.part, batch_size=options.micro_batch)
        done.parts = peer.directory if peer.spec.split.averages_clients else run.folder
        output.event(
            "split.joined", peer=peer.peer_id, samples=len(run.samples.labels), variant=peer.spec.split.variant
        )
        output.say(_first_words(run))
        collect_again()

        def look() -> Display:
            said = f", loss {run.loss:.4f}" if run.batches else ""
            view = run_view(self.watcher.look(), own=f" · you: {counted(run.batches, 'batch', 'batches')}{said}")
            own = {"batches": run.batches, "loss": run.loss if run.batches else None}
            return replace(view, values={**view.values, "own": own})

        def on_batch(samples: int) -> None:
            done.steps += 1
            done.contributed += 1
            done.samples += samples

        try:
            with Ticker(output, look) as ticker:

                def is_over() -> bool:
                    ticker.check()
                    return self._is_over(done.steps)

                run.train(is_over, on_batch)
            if self._is_pausing:
                return True
            found = run.evaluate()
            sent, received = peer.on_loop(peer.session.node.traffic)
        finally:
            run.close()
        told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        trained = f"Trained on {counted(done.steps, 'batch', 'batches')}{f': {told}' if told else ''}."
        output.say(f"{trained} This client's parts: {done.parts}")
        output.summary(
            ok=True, batches=done.steps, bytes_sent=sent, bytes_received=received, **found, directory=str(run.folder)
        )
        return False

    def _on_event(self, event: Event) -> None:
        if isinstance(event.data, AccessNotRenewed):  # rounds in which parts are averaged are no batches
            super()._on_event(event)


def _first_words(run: ClientRun) -> str:
    section, size = run.client.peer.spec.split, run.samples.inputs.numel() * run.samples.inputs.element_size()
    stays = "inputs and labels stay here" if section.variant == "u-shaped" else "inputs stay here, labels do not"
    known = " It goes on with the parts that are in its folder." if run.resumes else ""
    example = "" if run.part is None else f" of the example, part {run.part}"
    return (
        f"This client trains on {counted(len(run.samples.labels), 'sample')}{example} ({format_size(size)}): "
        f"{stays}.{known} "
        "docs/split-learning.md says what the server can find out all the same."
    )
