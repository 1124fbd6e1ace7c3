"""When what one peer alone has is copied for its file (`run_folder/own_state.py`), and how it comes back.

It is copied on the training thread, when the replica has come to a step and no round runs: with each step of which a
checkpoint is due, and at a polite end, if the checkpoint of the last step was written.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from minga.core.errors import StorageError
from minga.core.spec.run_spec import RunSpec
from minga.network.interface import PeerId
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.member import Member
from minga.training.replica.replica import Replica
from minga.training.run_folder.own_state import OwnState, OwnStateFile

BYTES_PER_PARAMETER_BYTE = 16
"""A file with more bytes of tensors for each byte of the model is none of this peer's: residual, sketch, and what a
strategy and an optimizer keep are a few vectors each."""

logger = logging.getLogger("minga.training")


class OwnStateKeeper:
    """Made on the training thread, as the replica, which is at the step of its checkpoint, if there is one."""

    def __init__(self, directory: Path, peer: PeerId, spec: RunSpec, replica: Replica, port: GradientPort) -> None:
        layout = replica.vector.layout
        self.file = OwnStateFile(directory, peer, spec, layout.fingerprint)
        self._limit_bytes = BYTES_PER_PARAMETER_BYTE * 4 * layout.total
        self._every, self._last = spec.checkpoints.every_steps, spec.training.stop_after_steps
        self._replica, self._port, self._thread = replica, port, threading.get_ident()
        self._member: Member | None = None
        self._copy: OwnState | None = None
        self._written: int | None = None

    def take_up(self) -> OwnState | None:
        """Put back into strategy and sketch what an earlier process had at this step; returns it, for `begin`."""
        own = self.file.load(self._replica.step, self._limit_bytes, self._port.strategy)
        if own is None or (own.is_final and not self._begin_anew(own)):
            return None
        try:
            self._replica.restore_left_out(own.left_out)
            if own.local:
                self._port.take_up(own.local)
        except ValueError as error:
            logger.warning("%s is not used: %s; what this peer alone had begins anew", self.file.path, error)
            self._replica.forget_left_out()
            return None
        return own

    def begin(self, member: Member, before: OwnState | None) -> None:
        """The peer takes part, with what `take_up` returned. On the loop."""
        self._member, self._vectors = member, member.vectors
        member.replica_step.on_absorbed = self._note_step
        if before is not None:
            member.vectors.restore(before.residuals)
            member.in_doubt = not before.is_final

    def beside(self, step: int) -> OwnState | None:
        """The copy that goes with the checkpoint of `step`, which was written; None if there is nothing to keep."""
        self._written = step
        copy = self._copy
        return None if copy is None or copy.step != step or copy.is_empty else copy

    def at_end(self) -> OwnState | None:
        """The last one, after the peer's life has ended; None if it is not to be written.

        So it is where no checkpoint of this step was written, where the peer does not know what others have counted of
        it, and on another thread than the training thread, which may be at work.
        """
        member = self._member
        if member is None or self._written != self._replica.step or threading.get_ident() != self._thread:
            return None
        if member.in_doubt or not member.ready.is_set():
            return None
        copy = self._copied(self._replica.step, is_final=True)
        return None if copy is None or copy.is_empty else copy

    def _begin_anew(self, own: OwnState) -> bool:
        """From now on rounds may count something of it: after a kill the file on disk is to be final no more.

        False if it stays so. What is in it is not to be used then: it could count again in the next process.
        """
        try:
            self.file.save(replace(own, is_final=False))
            return True
        except StorageError as error:
            reason = error
        try:
            self.file.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s is not used: %s, and it cannot be removed: %s", self.file.path, reason, error)
            return False
        logger.warning("%s is removed: %s", self.file.path, reason)
        return True

    def _note_step(self, step: int) -> None:
        """On the training thread: the replica has come to `step`."""
        if (self._every and step % self._every == 0) or step == self._last:
            self._copy = self._copied(step, is_final=False)

    def _copied(self, step: int, *, is_final: bool) -> OwnState | None:
        residuals = self._vectors.kept(step)
        if residuals is None:
            return None
        port, left_out = self._port, self._replica.left_out()
        return OwnState(step, is_final, port.strategy, port.local_tensors(), residuals, left_out)
