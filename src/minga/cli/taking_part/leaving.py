"""How a peer leaves a run by Ctrl-C, and what is said then.

In a run whose members check each other it is between two steps. There silence after a commitment costs the key its
place for a while. So the first Ctrl-C only asks to leave when the step is taken; the second one leaves at once.

A host writes a checkpoint of the newest step, if there is time for it within the second that an end takes:

    Ctrl-C, SIGTERM, SIGHUP ─▶ noted ─▶ the next moment at which the model is at rest ─▶ checkpoint ─▶ the command ends
                                 └── `PATIENCE_S` later, whatever it does, it is interrupted as usual

A signal may come in the middle of an update, so the handler itself touches nothing. A checkpoint that is cut off leaves
the earlier ones as they are.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minga.cli.terminal.context import Context
from minga.core.units import counted
from minga.recipes.running.run import RecipeRun
from minga.training.join import PeerOptions
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer

PATIENCE_S: Final = 0.4
"""Seconds after which a host is interrupted as usual, whatever it does."""

ASKED = "Leaving when this step is taken. Ctrl-C again leaves at once, and may suspend this key for some steps."


def thanks(ended: str, contributed: int, samples: int) -> str:
    """The last words to a volunteer."""
    return (
        f"{ended}. This machine took part in {counted(contributed, 'step')} with {counted(samples, 'sample')}. "
        "Thank you!"
    )


def farewell_of_volunteer(done: Mapping[str, int]) -> str:
    """What a volunteer reads who left by Ctrl-C."""
    said = thanks(f"Stopped at step {done['step']}", done["steps_contributed"], done["samples"])
    return f"{said} To come back, type the same command again."


def farewell_of_host(folder: Path, options: PeerOptions, done: Mapping[str, int], *, is_temporary: bool) -> str:
    """What an organiser reads whose `minga host` was told to end, by Ctrl-C or another signal; a key for one time only
    cannot go on with the run. `is_temporary`: `folder` is deleted with the command.
    """
    at = f" at step {done['step']}" if "step" in done else ""
    kept = f"; the newest checkpoint is of step {done['checkpoint']}" if "checkpoint" in done else ""
    if is_temporary:
        return f"This host has left{at}. The run's folder was a temporary one, and is deleted."
    said = f"This host has left{at}{kept}. The run lies in {folder}"
    if options.ephemeral:
        return f"{said}."
    key = "" if options.identity is None else f" --identity {shlex.quote(str(options.identity))}"
    return f"{said}. To go on with it:\nminga host {shlex.quote(str(folder))}{key}"


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
    """That of one `minga host`. Runs whose members owe each other gradients are left in another way."""

    def __init__(self, peer: Peer, context: Context) -> None:
        self._peer, self._interruption = peer, context.interruption
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

    def on_disk(self) -> dict[str, int]:
        """The step of the newest checkpoint, by the name `checkpoint`; empty if there is none."""
        step = self._peer.checkpointer.newest_step()
        return {} if step is None else {"checkpoint": step}

    def _ask(self) -> bool:
        self._timer = threading.Timer(PATIENCE_S, self._interruption.trigger)
        self._timer.daemon = True
        self._timer.start()
        return True
