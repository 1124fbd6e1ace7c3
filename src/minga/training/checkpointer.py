"""The checkpoints of one peer: of which steps there are any, and what is written with one.

    a round leads to a step ─▶ is it due? ─▶ copies of the state, and of what this peer alone has
                                              └─▶ thread ─▶ checkpoints/step-…, own-….safetensors, archive/step-…

One rule says when a checkpoint is due, by the run spec as it is amended (`Checkpointer.is_due`). What this peer alone
has is copied on the training thread, when the replica has come to a step that is due and no round runs, and once more
at a polite end, if the checkpoint of the last step was written. All of one step is written by one thread, in order.
Copies to other places have a thread of their own (`keeping/archive.py`): a line may be slow for hours.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from minga.core.errors import ClosedError, StorageError, reason_of
from minga.core.events.bus import EventData
from minga.core.events.training import CheckpointFailed, CheckpointSaved
from minga.core.spec.run_spec import RunSpec
from minga.keeping.archive import Archive, Archiver, ArchiveRecord, cause_of
from minga.keeping.complete_checkpoints import complete_checkpoints
from minga.network.interface import PeerId
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.founding import Genesis
from minga.training.life.member import Member
from minga.training.replica.buffers import OWN_BUFFERS_FILE
from minga.training.replica.replica import Replica
from minga.training.session import Session
from minga.training.state.checkpoints import Checkpoint, CheckpointStore, further_file
from minga.training.state.manifest import Manifest, build_manifest
from minga.training.state.own_state import OwnState, OwnStateFile
from minga.training.state.snapshot import StateSnapshot
from minga.training.status.status_reader import StatusReader

GENESIS_FILE = "genesis.bin"
BYTES_PER_PARAMETER_BYTE = 16
"""A file with more bytes of tensors for each byte of the model is none of this peer's: residual, sketch, and what a
strategy and an optimizer keep are a few vectors each."""

logger = logging.getLogger("minga.training")


class Checkpointer:
    """Keeps the checkpoints of the peer behind `session` in `directory`; `note` emits an event, on any thread.

    All methods are for the training thread, which is the one that calls `take_up`, unless they say something else.
    """

    def __init__(self, session: Session, directory: Path, note: Callable[[EventData], None]) -> None:
        self._session, self._directory, self._note = session, directory, note
        self._own: OwnStateKeeper | None = None
        self._archiver: Archiver | None = None
        self._judged = (-1, False)  # the last step about which the rule was asked, and what it said
        self._copy: OwnState | None = None
        self._kept: int | None = None  # the step whose state, as the replica has it, was given to `save`
        self._written: int | None = None  # and whose is on the disk
        self._latest = -1  # the step of the last one that this peer wrote or went on from
        self._saving: threading.Thread | None = None
        self._causes: dict[str, str] = {}  # why each kind of file could not be written the last time

    # ---- before training

    def newest(self) -> StateSnapshot | None:
        """The newest intact checkpoint of the run on this machine; on any thread. Raises `StorageError` if none can be
        used.
        """
        checkpoint = self._store.load(self._founding_id)
        return None if checkpoint is None else checkpoint.snapshot

    def resume(self) -> Checkpoint | None:
        """The same with its files, for the replica to go on from."""
        checkpoint = self._store.load(self._founding_id)
        if checkpoint is None:
            return None
        self._kept = self._written = self._latest = checkpoint.snapshot.step
        return checkpoint

    def genesis(self, organiser: str) -> Genesis | None:
        """How the run was founded, as the newest checkpoint has it that says so. Raises `StorageError`."""
        found, run_id = complete_checkpoints(self._directory / "checkpoints"), self._session.node.run_id
        kept = (further_file(folder, GENESIS_FILE) for _, folder in reversed(found))
        said = (Genesis.from_bytes(each, run_id, organiser) for each in kept if each is not None)
        return next(filter(None, said), None)

    def archive(self, archive: Archive, status: StatusReader) -> None:
        """Keep some checkpoints for good from now on, signed by this peer, with the loss by `status`."""
        self._archiver = Archiver(self._directory, archive, self._session.identity, self._note)
        self._archived_status = status

    def take_up(self, replica: Replica, port: GradientPort) -> OwnState | None:
        """Put back into `port` and `replica` what an earlier process of this peer alone had at the step of the replica;
        returns it, for `begin`.
        """
        self._own = OwnStateKeeper(self._directory, self._session.peer_id, self._session.run.spec, replica, port)
        return self._own.take_up()

    def begin(self, member: Member, before: OwnState | None) -> None:
        """The peer takes part, with what `take_up` returned. On the loop."""
        if self._own is not None:
            self._own.begin(member, before)
            member.on_absorbed = self.note_step

    # ---- while it trains

    @property
    def last_step(self) -> int | None:
        """The step after which the run ends, as the organisers amended it; None if no end is set. On any thread."""
        return self._session.spec.training.stop_after_steps

    def note_step(self, step: int) -> None:
        """A round has led the replica to `step`, and the next one has not begun."""
        self._copy = None
        if self._judge(step) and self._own is not None:
            self._copy = self._own.copied(step, is_final=False)

    def is_due(self, step: int) -> bool:
        """Whether to `save` the state after `step`, to which the replica has come: the run spec asks for it, the run is
        over, or it is one to keep for good. While the last one is written only the latter two are.
        """
        noted, is_due = self._judged
        return is_due if noted == step else self._judge(step)

    def is_kept(self, step: int) -> bool:
        """Whether the state that the replica has, of `step`, was given to `save`, or comes from a checkpoint."""
        return self._kept == step

    def forget(self) -> None:
        """The replica has taken the state of others: what was kept of its step may have been another one."""
        self._kept, self._written, self._copy, self._judged = None, None, None, (-1, False)

    def save(self, snapshot: StateSnapshot, own_buffers: bytes, *, wait: bool = False) -> None:
        """Write a checkpoint with the replica's `own_buffers`, beside training, or (`wait`) at once."""
        own, self._copy = self._copy, None
        if own is not None and own.step != snapshot.step:
            own = None
        self._kept = snapshot.step
        self.wait()
        saving = threading.Thread(
            target=self._write,
            args=(snapshot, self._files(own_buffers), own),
            kwargs={"tells": wait or self._is_over(snapshot.step)},
            name="minga-checkpoint",
        )
        saving.start()
        self._saving = saving  # not before: nobody can wait for a thread that has not begun
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is there. On any thread."""
        if self._saving is not None:
            self._saving.join()

    def close(self) -> None:
        """The peer's life has ended: write what is left. On any thread, but on another than the training thread, while
        that lives, without what this peer alone has.
        """
        self.wait()
        if self._own is not None and (state := self._own.at_end(self._written)) is not None:
            self._write_own(self._own.file, state)
        if self._archiver is not None:
            self._archiver.close()

    # ---- inner workings

    @property
    def _founding_id(self) -> str:
        """The founding from which all states of the run descend; "" if it is not known yet."""
        founding = self._session.founding
        return "" if founding is None or founding.genesis is None else founding.genesis.id

    @cached_property
    def _store(self) -> CheckpointStore:
        return CheckpointStore(self._directory / "checkpoints", keep=self._session.run.spec.checkpoints.keep)

    def _judge(self, step: int) -> bool:
        """The rule. It is asked once about each step: what is copied at one moment is written at another."""
        every = self._session.spec.checkpoints.every_steps
        is_free = self._saving is None or not self._saving.is_alive()
        is_due = self._is_over(step) or self._is_for_good(step) or (every > 0 and step % every == 0 and is_free)
        is_due = is_due or (self._latest > step and self._kept is None)  # a kill must not bring back what was given up
        self._judged = step, is_due
        return is_due

    def _is_over(self, step: int) -> bool:
        return self.last_step is not None and step >= self.last_step

    def _is_for_good(self, step: int) -> bool:
        return self._archiver is not None and (step % self._archiver.every_steps == 0 or self._is_over(step))

    def _files(self, own_buffers: bytes) -> dict[str, bytes]:
        """What lies beside the state: the run spec, the organisers' orders that changed it, the genesis, without which
        nobody could tell a newcomer that the state is one of the run, and `own_buffers`, if there are any.
        """
        ledger = self._session.admission.ledger
        amendments = [] if ledger is None else list(ledger.amendments)
        files = {"run-spec.toml": self._session.run.spec.to_toml().encode()}
        if (founding := self._session.founding) is not None and founding.genesis is not None:
            files[GENESIS_FILE] = msgspec.msgpack.encode(founding.genesis)
        if own_buffers:
            files[OWN_BUFFERS_FILE] = own_buffers
        if amendments:
            said = [{"number": a.number, "from_step": a.from_step, "changes": dict(a.changes)} for a in amendments]
            files["amendments.json"] = json.dumps(said, indent=1).encode()
        return files

    # ---- on the thread that writes

    def _write(self, snapshot: StateSnapshot, files: Mapping[str, bytes], own: OwnState | None, *, tells: bool) -> None:
        step = snapshot.step
        try:
            manifest = build_manifest(snapshot)
            self._store.keep = self._session.spec.checkpoints.keep
            path = self._store.save(snapshot, manifest, files=files)
            self._store.give_up_after(step)
            self._latest = step
        except Exception as error:  # also for want of memory: else the thread would end without a word
            newest: int | None = None
            with contextlib.suppress(StorageError, OSError):
                newest = max(self._store.steps(), default=None)
            steps = "all steps are" if newest is None else f"all steps after {newest} are"
            lost = f". If this process ends before one is written, {steps} lost, unless other peers have them"
            self._tell_failure("checkpoints", step, error, _words(error), lost, again=tells)
            return
        if self._kept == step:  # else others' state has taken its place meanwhile
            self._written = step
        self._note(CheckpointSaved(step=step, path=str(path)))
        self._tell_success("checkpoints", step)
        if self._own is not None and own is not None:
            self._write_own(self._own.file, own)
        if self._archiver is not None and self._is_for_good(step):
            self._write_for_good(self._archiver, path, manifest)

    def _write_own(self, file: OwnStateFile, state: OwnState) -> None:
        try:
            file.save(state)
        except Exception as error:
            lost = f". After a kill this peer goes on from step {state.step} without what it alone had"
            self._tell_failure("files of what this peer alone has", state.step, error, _words(error), lost)
        else:
            self._tell_success("files of what this peer alone has", state.step)

    def _write_for_good(self, archiver: Archiver, path: Path, manifest: Manifest) -> None:
        loss: float | None = None
        with contextlib.suppress(ClosedError, RuntimeError):  # closed meanwhile: the checkpoint counts, not its loss
            loss = self._archived_status.look().status.loss
        session = self._session
        record = ArchiveRecord(
            session.node.run_id,
            session.run.spec.name,
            manifest.step,
            manifest.digest,
            loss,
            time.time(),
            session.peer_id,
        )
        try:
            archiver.add(path, record)
        except Exception as error:
            why = f"the checkpoint of step {manifest.step} is not in the archive: {_words(error)}"
            self._tell_failure("archived checkpoints", manifest.step, error, why)
        else:
            self._tell_success("archived checkpoints", manifest.step)

    def _tell_failure(
        self, what: str, step: int, error: Exception, why: str, lost: str = "", *, again: bool = False
    ) -> None:
        """Tell `why`, and what is `lost`: programs each time, by an event; people once for each cause, or `again`."""
        self._note(CheckpointFailed(step=step, why=why))
        cause = cause_of(error)
        if again or self._causes.get(what) != cause:
            logger.warning("%s%s", why, lost)
        self._causes[what] = cause

    def _tell_success(self, what: str, step: int) -> None:
        if self._causes.pop(what, None) is not None:
            logger.warning("%s are written again, from step %d on", what, step)


def _words(error: Exception) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error) or cause_of(error)


class OwnStateKeeper:
    """What one peer alone has, from file and to file (`state/own_state.py`).

    Made on the training thread, as the replica, which is at the step of its checkpoint, if there is one.
    """

    def __init__(self, directory: Path, peer: PeerId, spec: RunSpec, replica: Replica, port: GradientPort) -> None:
        layout = replica.vector.layout
        self.file = OwnStateFile(directory, peer, spec, layout.fingerprint)
        self._limit_bytes = BYTES_PER_PARAMETER_BYTE * 4 * layout.total
        self._replica, self._port = replica, port
        self._member: Member | None = None

    def take_up(self) -> OwnState | None:
        """Put back into strategy and sketch what an earlier process had at this step; returns it, for `begin`."""
        step, rounds = self._replica.step, self._replica.lineage.rounds
        own = self.file.load(step, rounds, self._limit_bytes, self._port.strategy)
        if own is None or (own.is_final and not self._begin_anew(own)):
            return None
        try:
            self._replica.left_out.restore(own.left_out)
            if own.local:
                self._port.take_up(own.local)
        except ValueError as error:
            logger.warning("%s is not used: %s; what this peer alone had begins anew", self.file.path, error)
            self._replica.left_out.forget()
            return None
        return own

    def begin(self, member: Member, before: OwnState | None) -> None:
        """The peer takes part, with what `take_up` returned. On the loop."""
        self._member, self._vectors = member, member.vectors
        if before is not None:
            member.vectors.left_out.restore(before.residuals)
            member.in_doubt = not before.is_final

    def copied(self, step: int, *, is_final: bool) -> OwnState | None:
        """A copy of what there is at `step`; None if there is nothing to keep, or a round runs."""
        port, replica = self._port, self._replica
        residuals, left_out = self._vectors.left_out.kept(step), replica.left_out.kept(step)
        if residuals is None or left_out is None:
            return None
        rounds, local = replica.lineage.rounds, port.local_tensors()
        state = OwnState(step, rounds, is_final, port.strategy, local, residuals, left_out)
        return None if state.is_empty else state

    def at_end(self, written: int | None) -> OwnState | None:
        """The last one, after the peer's life has ended; None if it is not to be written.

        So it is where the newest checkpoint, of step `written`, is not of this step, where the peer does not know what
        others have counted of it, and where the training thread may be at work.
        """
        member = self._member
        if member is None or written != self._replica.step or not self._port.is_at_rest:
            return None
        if member.in_doubt or not member.ready.is_set():
            return None
        self._replica.left_out.take_back()  # what it was about to give to a round that never began
        return self.copied(self._replica.step, is_final=True)

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
