"""What `minga host` and `minga join` do beside training: measure on held-out data now and then, and leave well.

In a run whose members check each other, to leave well is to leave between two steps. There silence after a commitment
costs the key its place for a while. So the first Ctrl-C only asks to leave when the step is taken; the second one
leaves at once.

Whoever leaves may be the last one that has the newest step. So a host or a volunteer writes a checkpoint of it, if
there is time for it within the second that an end takes:

    Ctrl-C, SIGTERM, SIGHUP ─▶ noted ─▶ the next moment at which the model is at rest ─▶ checkpoint ─▶ the command ends
                                 └── `PATIENCE_S` later, whatever it does, it is interrupted as usual

A signal may come in the middle of an update, so the handler itself touches nothing. A checkpoint that is cut off leaves
the earlier ones as they are.
"""

from __future__ import annotations

import logging
import math
import shlex
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minga.cli.terminal.context import Context
from minga.cli.terminal.output import Output
from minga.core.errors import MingaError
from minga.core.units import counted
from minga.keeping.complete_checkpoints import complete_checkpoints
from minga.monitor.history import History
from minga.recipes.running.background_evaluation import Evaluator
from minga.recipes.running.run import RecipeRun
from minga.training.join import PeerOptions
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer

PATIENCE_S: Final = 0.4
"""Seconds after which the command is interrupted as usual, whatever it does."""

ASKED = "Leaving when this step is taken. Ctrl-C again leaves at once, and may suspend this key for some steps."


def thanks(ended: str, contributed: int, samples: int) -> str:
    """The last words to a volunteer."""
    return (
        f"{ended}. This machine took part in {counted(contributed, 'step')} with {counted(samples, 'sample')}. "
        "Thank you!"
    )


def farewell_of_volunteer(done: Mapping[str, int]) -> str:
    """What a volunteer reads who left by Ctrl-C, with which steps are lost if no other peer has them."""
    said = thanks(f"Stopped at step {done['step']}", done["steps_contributed"], done["samples"])
    newest = done.get("checkpoint", 0)
    if done["step"] > newest:
        said += f" The newest checkpoint here is of step {newest}." if newest else " No checkpoint is kept here."
    return f"{said} To come back, type the same command again."


def farewell_of_host(peer: Peer, options: PeerOptions, done: Mapping[str, int], *, is_temporary: bool) -> str:
    """What an organiser reads whose `minga host` was told to end, by Ctrl-C or another signal; nobody can go on with a
    run that is complete, nor with a key for one time only. `is_temporary`: the folder is deleted with the command.
    """
    last, folder = peer.spec.training.stop_after_steps, peer.directory
    is_complete = last is not None and done.get("step", 0) >= last
    at = f" at step {done['step']}" if "step" in done else ""
    kept = f"; the newest checkpoint is of step {done['checkpoint']}" if "checkpoint" in done else ""
    if is_temporary:
        return f"This host has left{at}. The run's folder was a temporary one, and is deleted."
    said = f"This host has left{at}{kept}. The run {'is complete, and ' if is_complete else ''}lies in {folder}"
    if options.ephemeral or is_complete:
        return f"{said}."
    key = "" if options.identity is None else f" --identity {shlex.quote(str(options.identity))}"
    return f"{said}. To go on with it:\nminga host {shlex.quote(str(folder))}{key}"


def on_disk(directory: Path) -> dict[str, int]:
    """The step of the newest checkpoint in the folder of a run, by the name `checkpoint`; empty if there is none."""
    found = complete_checkpoints(directory / "checkpoints")
    return {"checkpoint": found[-1][0]} if found else {}


class GracefulLeave:
    """Whether the person at this machine has asked to leave, in a run where that takes until the end of the step."""

    def __init__(self, peer: Peer, context: Context) -> None:
        self._peer, self._output = peer, context.output
        self._asked_at: int | None = None
        if peer.spec.security.verification == "byzantine" and peer.role == "trainer":
            context.interruption.defer(self._ask)

    def is_over(self, step: int) -> bool:
        """Whether it is time to go, with `step` taken."""
        return self._asked_at is not None and step > self._asked_at

    def ask(self) -> bool:
        """Note the wish to leave; False if nothing is lost by leaving at once."""
        life = self._peer.session.member
        if not isinstance(life, VerifiedMember) or not life.has_a_say:
            return False
        self._asked_at = life.step
        return True

    def _ask(self) -> bool:
        asked = self.ask()
        if asked:
            self._output.say(ASKED)
        return asked


class LastCheckpoint:
    """That of one command. Runs whose members owe each other gradients are left in another way."""

    def __init__(self, peer: Peer, context: Context) -> None:
        self._interruption = context.interruption
        self._timer: threading.Timer | None = None
        if peer.role != "monitor" and peer.spec.security.verification != "byzantine":
            context.interruption.defer(self._ask, ends=True)

    @property
    def is_wanted(self) -> bool:
        """Whether Ctrl-C, or another signal to end, came."""
        return self._timer is not None

    def write(self, run: RecipeRun) -> None:
        """If it is wanted: write the checkpoint, then interrupt the command. The model has to be at rest."""
        if self._timer is None:
            return
        if run.step:
            run.optimizer.save_checkpoint()
        self._timer.cancel()
        self._interruption.trigger()
        raise KeyboardInterrupt  # the handler of the signal is as a rule faster

    def _ask(self) -> bool:
        self._timer = threading.Timer(PATIENCE_S, self._interruption.trigger)
        self._timer.daemon = True
        self._timer.start()
        return True


logger = logging.getLogger("minga")

FIRST_PERIOD_S = 20.0
SHARE = 0.05
"""Evaluation takes at most this share of the time."""


class HeldOut:
    """The held-out figures of what `run` trains. `first` and `latest` are empty until there are some."""

    def __init__(self, run: RecipeRun, output: Output, history: History) -> None:
        self.first: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self._run, self._output, self._history = run, output, history
        self._evaluator = Evaluator(run.peer.spec, run.files, run.model, self._on_figures)
        self._due, self._begun, self._step = 0.0, 0.0, -1

    def now(self) -> None:
        """Evaluate the model as it is and wait for the figures. Raises what the recipe raises, if it never gave any;
        otherwise, and in `if_due`, training goes on without them.
        """
        self._wait()
        if self._run.step != self._step:
            self._start()
            self._wait()

    def if_due(self) -> None:
        """Start an evaluation in the background if it is time for one; call it while the model is at rest."""
        if self._evaluator.is_busy:
            return
        self._tell(self._evaluator.take_error())
        if self._run.step != self._step and time.monotonic() >= self._due:
            self._start()

    def _wait(self) -> None:
        self._evaluator.wait()
        error = self._evaluator.take_error()
        if error is not None and not self.first:
            raise error
        self._tell(error)

    def _tell(self, error: Exception | None) -> None:
        """Say why the last evaluation gave no figures; it is tried again when the next one is due."""
        if error is None:
            return
        why = None if isinstance(error, MingaError) else error  # another author's defect, with its traceback
        logger.warning("no figures on held-out data of step %d: %s", self._step, error, exc_info=why)
        self._due = time.monotonic() + FIRST_PERIOD_S

    def _start(self) -> None:
        self._due, self._step, self._begun = math.inf, self._run.step, time.monotonic()
        self._evaluator.start(self._run.model, self._step)

    def _on_figures(self, step: int, figures: dict[str, float]) -> None:
        took_s = time.monotonic() - self._begun
        self._due = time.monotonic() + max(FIRST_PERIOD_S, took_s / SHARE)
        self.latest = {"step": step, **figures}
        self.first = self.first or self.latest
        headline = self._run.recipe.headline.name
        self._output.event("evaluation", step=step, seconds=round(took_s, 3), headline=headline, **figures)
        self._history.add(time.time(), "evaluation", step=step, headline=headline, **figures)
