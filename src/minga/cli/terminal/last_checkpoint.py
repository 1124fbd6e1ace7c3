"""The end of a host: a checkpoint of the newest step, if there is time for it within the second that an end takes.

    Ctrl-C, SIGTERM, SIGHUP ─▶ noted ─▶ the next moment at which the model is at rest ─▶ checkpoint ─▶ the command ends
                                 └── `PATIENCE_S` later, whatever it does, it is interrupted as usual

A signal may come in the middle of an update, so the handler itself touches nothing. A checkpoint that is cut off leaves
the earlier ones as they are.
"""

from __future__ import annotations

import threading
from typing import Final

from minga.cli.terminal.context import Context
from minga.recipes.running.run import RecipeRun
from minga.training.peer import Peer

PATIENCE_S: Final = 0.4


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
