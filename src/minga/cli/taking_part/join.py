"""`minga join`: take part in a run with this machine."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from minga.cli.taking_part.first_screen import show_and_ask
from minga.cli.taking_part.graceful_leave import GracefulLeave
from minga.cli.taking_part.login import LoginOptions, PersonAtTerminal
from minga.cli.taking_part.status_view import OwnPart, PlainTrouble, volunteer_lines, volunteer_view
from minga.cli.terminal.context import Context, collect_again
from minga.cli.terminal.exit_codes import done_so_far
from minga.cli.terminal.peer_options import WorkOptions, apply_threads, wire
from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event
from minga.core.events.security import SecureAdmitted, SecureCandidate, SecureDropped, SecureFounded, SecureWaiting
from minga.core.events.training import AccessNotRenewed, StepApplied, SyncAdvanced, SyncFinished
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.prospect import Prospect

if TYPE_CHECKING:
    from minga.cli.taking_part.held_out import HeldOut
    from minga.cli.terminal.output import Ticker
    from minga.recipes.running.run import RecipeRun

SHARE_STEPS = 20
"""How many of the last steps the shown share is taken over."""


@dataclass(frozen=True)
class JoinOptions:
    """How to log in, where the run asks for it, whether to measure the loss on held-out text, and whether to take part
    without being asked (`yes`).
    """

    login: LoginOptions
    evaluate: bool = False
    yes: bool = False


def run_join(link: str, peer: PeerOptions, work: WorkOptions, options: JoinOptions, context: Context) -> None:
    """Join, fetch the state, and train until the run ends or Ctrl-C comes."""
    from minga.authority import join
    from minga.identity.links.links import Link
    from minga.recipes.registry import CUSTOM

    if options.evaluate and peer.role == "monitor":
        raise ConfigurationError("--evaluate needs a model, which --role monitor does not have; try --role auxiliary")
    parsed = Link.parse(link)
    apply_threads(work.threads)
    context.output.say("Looking for the run …")
    person = PersonAtTerminal(options.login, context.output)

    def consider(prospect: Prospect) -> None:
        show_and_ask(prospect, peer, work, context.output, yes=options.yes)

    with join(parsed, peer, person, consider=consider) as joined:
        wire(context, joined)
        if joined.spec.model.recipe == CUSTOM and joined.role != "monitor":
            raise ConfigurationError(
                "this run trains a model of the organiser's own (recipe custom), which this command does not have; "
                "use the program that the organiser gave you: it calls minga.join with this link"
            )
        _Joining(joined, work, context, evaluate=options.evaluate).run()


def machine(run: RecipeRun) -> str:
    """The device that a run uses on this machine, and how much it computes at once."""
    from minga.recipes.running.device_speed import hardware

    return f"{hardware(run.device)}, micro-batch {run.micro_batch_size}"


class _Joining:
    """One `minga join`."""

    def __init__(self, peer: Peer, work: WorkOptions, context: Context, *, evaluate: bool) -> None:
        from minga.monitor.history import History
        from minga.monitor.watcher import Watcher

        self.peer, self.work, self.output, self.parent_watch = peer, work, context.output, context.parent_watch
        self.evaluate = evaluate
        self._leaving = GracefulLeave(peer, context)
        self.held_out: HeldOut | None = None
        self._run: RecipeRun | None = None
        self.watcher = Watcher(peer, History(None))
        self._trouble = PlainTrouble()
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._samples, self._step, self._phase = 0, 0, "joining"
        self._losses: deque[float] = deque(maxlen=50)
        self._shares: deque[float] = deque(maxlen=SHARE_STEPS)
        self._contributed = 0
        self._sync = (0, 0)
        peer.subscribe(self._on_event)
        done_so_far.append(
            lambda: {"step": self._step, "steps_contributed": self._contributed, "samples": self._samples}
        )

    def run(self) -> None:
        """Take part, with a display beside."""
        from minga.cli.terminal.output import Ticker
        from minga.recipes.running.run import RecipeRun

        self.output.event("joined", run=self.peer.spec.name, run_id=self.peer.run_id, peer=self.peer.peer_id)
        self.output.say(f"Joined [bold]{self.peer.spec.name}[/] as {self.peer.peer_id[:10]}, {self.peer.role}.")
        if not self.peer.on_loop(self.peer.session.node.connected):
            link = self.peer.link
            self.output.event("alone", link=str(link))
            self.output.say(
                "Nobody of this run answers: going on alone from the checkpoint that is here. Others join by"
            )
            if not self.output.json_output:
                self.output.console.print(f"minga join {link}", markup=False, soft_wrap=True)
        with Ticker(self.output, self._look, volunteer_view, self._lines) as ticker:
            if self.peer.role == "monitor":
                collect_again()
                while not (self.parent_watch and self.parent_watch.is_over(self.watcher.look().step)):
                    ticker.check()
                    time.sleep(0.5)
                return
            run = RecipeRun(
                self.peer, device=self.work.device, micro_batch_size=self.work.micro_batch, data=self.work.data
            )
            collect_again()
            self._step, self._phase, self._run = run.step, "training", run
            self.output.say(f"This machine takes part with {machine(run)}.")
            self.output.event("ready", step=run.step, device=str(run.device), micro_batch=run.micro_batch_size)
            self._take_part(run, ticker)
            self._phase = "finished" if run.finished else "leaving"
        self._summarise(run)

    def _take_part(self, run: RecipeRun, ticker: Ticker) -> None:
        from minga.cli.taking_part.held_out import HeldOut

        held_out = self.held_out = HeldOut(run, self.output, self.watcher.history) if self.evaluate else None

        def is_over(step: int) -> bool:
            ticker.check()
            return self._leaving.is_over(step) or (self.parent_watch is not None and self.parent_watch.is_over(step))

        def between() -> None:
            if held_out is not None:
                held_out.if_due()

        def on_batch(step: int, samples: int, loss: float) -> None:
            self._on_batch(step, samples, loss)
            between()

        if self.peer.role == "auxiliary":
            run.follow(is_over, between)
        else:
            run.train(is_over, on_batch)
        if held_out is not None:
            held_out.now()

    def _summarise(self, run: Any) -> None:
        seconds = time.monotonic() - self._begun
        self.output.say(
            f"{'The run is complete' if run.finished else 'Stopped'} at step {run.step}. This machine took part in "
            f"{self._contributed} steps with {self._samples} samples. Thank you!"
        )
        self.output.summary(
            ok=True,
            step=run.step,
            finished=run.finished,
            digest=run.optimizer.digest(),
            steps_contributed=self._contributed,
            samples=self._samples,
            dropped_micro_batches=run.optimizer.dropped_micro_batches,
            seconds=round(seconds, 3),
            **({"first": self.held_out.first, "last": self.held_out.latest} if self.held_out else {}),
        )

    def _on_batch(self, step: int, samples: int, loss: float) -> None:
        with self._lock:
            self._step, self._samples = step, self._samples + samples
            self._losses.append(loss)

    def _on_event(self, event: Event) -> None:
        with self._lock:
            match event.data:
                case StepApplied() as applied:
                    self._shares.append(min(1.0, applied.samples / applied.batch))
                    self._contributed += applied.samples > 0
                    self._step = applied.step
                case SyncAdvanced() as sync:
                    self._sync = (sync.done_bytes, sync.total_bytes)
                    self._phase = "downloading the state"
                case SyncFinished() | SecureFounded():
                    self._phase = "training"
                case SecureWaiting():
                    self._phase = "waiting"
                case SecureCandidate(peer=self.peer.peer_id):
                    self._phase = "on probation"
                case SecureDropped(peer=self.peer.peer_id):
                    self._phase = "starting over"
                case SecureAdmitted(peer=self.peer.peer_id):
                    self._phase = "training"
                case AccessNotRenewed() as refused:
                    self.output.say(f"The access to this run was not renewed: {escape(refused.why)}")

    def _look(self) -> OwnPart:
        status = self.watcher.look()
        me = next((peer for peer in status.peers if peer.is_self), None)
        paths = tuple(sorted({peer.path for peer in status.peers if peer.path is not None and not peer.is_self}))
        with self._lock:
            return OwnPart(
                run=status,
                step=self._step,
                loss=sum(self._losses) / len(self._losses) if self._losses else None,
                samples=self._samples,
                samples_per_second=me.samples_per_second if me else 0.0,
                share=sum(self._shares) / len(self._shares) if self._shares else None,
                bytes_sent=me.bytes_sent if me else 0,
                bytes_received=me.bytes_received if me else 0,
                paths=paths,
                sync_done=self._sync[0],
                sync_total=self._sync[1],
                phase="resting" if status.resting and self._phase == "training" else self._phase,
                figures=self.held_out.latest if self.held_out else {},
                machine="" if self._run is None else machine(self._run),
            )

    def _lines(self, part: OwnPart) -> list[str]:
        return [*volunteer_lines(part), *self._trouble.lines(part.run)]
