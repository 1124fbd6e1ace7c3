"""The checkpoints of a run on this machine's disk.

Theory of operation. A checkpoint is written into a folder with a temporary name, flushed, and then renamed in one step
to `step-<number>-<digest>`; so a folder of that name is complete, whatever happened. Its name contains the digest, so
it is never overwritten by something else, and several peers may share one directory. A lock, which the operating system
drops when its process dies, lies beside each unfinished folder: a process that finds an unfinished folder without a
live lock removes it.

On reading, everything is verified against hashes. A damaged checkpoint is set aside under a name that begins with
`damaged-`, and the next older one is used.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from minga.core.errors import ConfigurationError, StorageError
from minga.core.units import format_size
from minga.identity.keys.file_lock import FileLock
from minga.training.lineage import Lineage
from minga.training.state.checkpoint_files import Checkpoint, flush_folder, read_checkpoint, write_checkpoint
from minga.training.state.complete_checkpoints import complete_checkpoints, folder_name
from minga.training.state.manifest import Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot

_PARTIAL, _DAMAGED = ".partial-", "damaged-"

logger = logging.getLogger("minga.training")


class CheckpointStore:
    """The last `keep` checkpoints in `directory`, which is made if it is missing. All methods block: use a thread.

    Left-overs of killed processes are removed at once. Raises `StorageError` if the directory cannot be used.
    """

    def __init__(self, directory: Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigurationError(f"keep = {keep}: at least one checkpoint must be kept")
        self.directory, self.keep = directory, keep
        self._last_saved: Path | None = None  # that this store wrote
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
        except OSError as error:
            raise StorageError(f"checkpoints cannot be kept in {directory}: {error}") from error

    def steps(self) -> list[int]:
        """Steps of which a checkpoint is there, ascending."""
        return [step for step, _ in complete_checkpoints(self.directory)] if self.directory.is_dir() else []

    def save(
        self, snapshot: StateSnapshot, manifest: Manifest | None = None, *, files: Mapping[str, bytes] | None = None
    ) -> Path:
        """Write a checkpoint, atomically, with further `files` by name; returns its folder.

        Raises `StorageError`, with nothing half-written left behind, if the disk refuses; and `ConfigurationError` for
        the name of a further file that cannot be used.
        """
        files = files or {}
        if bad := [name for name in files if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name)]:
            raise ConfigurationError(f"{bad[0][:60]!r} cannot be the name of a file in a checkpoint")
        manifest = manifest or build_manifest(snapshot)
        final = self.directory / folder_name(manifest.step, manifest.digest)
        if final.exists():
            if _lineage_of(final) == snapshot.lineage:  # the same state, saved before or by another peer
                self._prune(final, is_new=False)
                return final
            self._set_aside(final)
        partial, lock, is_new = None, None, True
        try:
            partial, lock = _reserve(self.directory)
            partial.mkdir()
            write_checkpoint(partial, snapshot, manifest, files)
            try:
                partial.rename(final)
            except OSError:
                if not final.exists():
                    raise
                is_new = False  # another peer was faster with the same state
            flush_folder(self.directory)
        except OSError as error:
            size = format_size(manifest.total_bytes)
            raise StorageError(
                f"no checkpoint of step {manifest.step} ({size}) could be written to {self.directory}: {error}; "
                "earlier checkpoints are untouched; free some space or choose another folder"
            ) from error
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
                _unlock_beside(partial, lock)
        self._prune(final, is_new=is_new)
        return final

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is intact; None if there is none at all.

        Damaged ones are set aside and logged. Raises `StorageError` if there are only damaged ones, also at the next
        call: what they held is lost, and no peer is to begin anew without a person's knowledge.
        """
        problems: dict[Path, str] = {}
        waiting = complete_checkpoints(self.directory)
        while waiting:
            step, path = waiting.pop()
            try:
                checkpoint = read_checkpoint(path)
            except (ValueError, FileNotFoundError) as error:
                if not path.exists():  # another process removed it as too old, so there are newer ones
                    waiting = complete_checkpoints(self.directory)
                    continue
                problems[path] = f"the checkpoint of step {step} is damaged ({error})"
                self._set_aside(path)
                continue
            except OSError as error:
                problems[path] = f"the checkpoint of step {step} cannot be read ({error})"
                continue
            for problem in problems.values():
                logger.warning("%s; going on from step %d, kept in %s", problem, step, path)
            return checkpoint
        set_aside = sorted(path.name for path in self.directory.glob(f"{_DAMAGED}*"))
        if problems or set_aside:
            told = "; ".join(problems.values()) or f"it has only damaged ones, such as {set_aside[-1]}"
            raise StorageError(
                f"no checkpoint in {self.directory} can be used: {told}; move the folder away to get the run's state "
                "from other peers, or, if this peer is to begin the run, to start from the beginning"
            )
        return None

    def _prune(self, just_saved: Path, *, is_new: bool = True) -> None:
        """Remove all but the last `keep` checkpoints, never the one that was just saved; and what this store wrote of
        the same step before, which this peer gave up for the state of others. What is not `is_new` another peer may
        have written, whose it stays.
        """
        steps = {path: step for step, path in complete_checkpoints(self.directory)}
        before, self._last_saved = self._last_saved, just_saved if is_new or just_saved == self._last_saved else None
        doomed = [*steps][: -self.keep]
        if before in steps and before != just_saved and steps[before] == steps.get(just_saved):
            doomed.append(before)
        for path in dict.fromkeys(doomed):
            if path == just_saved:
                continue
            try:
                self._discard(path)
            except FileNotFoundError:
                continue  # another peer of this machine keeps checkpoints here, too, and was faster
            except OSError as error:
                logger.warning("the old checkpoint %s could not be removed: %s", path, error)

    def _discard(self, path: Path) -> None:
        """Remove a complete checkpoint so that it is never seen half-removed."""
        doomed = self.directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _set_aside(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{_DAMAGED}{path.name}-{secrets.token_hex(4)}"))

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob(f"{_PARTIAL}*"):
            folder = path.with_suffix("")
            lock_path = _lock_path(folder)
            try:
                lock = FileLock.try_acquire(lock_path) if lock_path.exists() else None
            except OSError:
                continue  # no locks on this file system: whether its writer lives is unknown
            if lock is None and lock_path.exists():
                continue  # its writer lives
            shutil.rmtree(folder, ignore_errors=True)
            _unlock_beside(folder, lock)


def _lineage_of(path: Path) -> Lineage | None:
    """That of a checkpoint; None if it is damaged."""
    try:
        return read_checkpoint(path).snapshot.lineage
    except (ValueError, OSError):
        return None


def _lock_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.lock")


def _reserve(directory: Path) -> tuple[Path, FileLock | None]:
    """The name of an unfinished folder, locked from before it exists; without a lock where the file system has none."""
    while True:
        partial = directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        path = _lock_path(partial)
        path.touch(exist_ok=False)
        try:
            lock = FileLock.try_acquire(path)
        except FileNotFoundError:
            continue
        except OSError:
            return partial, None
        if lock is not None and path.exists():
            return partial, lock
        # Another process took the lock file for a leftover in this moment, and removes it: on to another name.
        _unlock_beside(partial, lock)


def _unlock_beside(partial: Path, lock: FileLock | None) -> None:
    """Remove the lock file, and only then let go of it: a writer that gets the lock in between would have one that
    nobody sees. Where an open file cannot be removed (Windows), it is removed afterwards.
    """
    path = _lock_path(partial)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    if lock is not None:
        lock.release()
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
