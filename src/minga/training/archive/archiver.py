"""Keeps some checkpoints for good, and copies them elsewhere, beside training.

Theory of operation. A checkpoint that is due is copied into `archive/` of the run's folder, by hard links where the
disk has them, with a signed record. `archive/` is also the queue of copies: one thread copies each checkpoint without
a mark to the target and then marks it. So a copy that failed, or that was cut off by a crash or a full disk, is made
later, at the latest after the next start. A failed copy is tried again after a growing pause, and training never waits.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minga.core.aio.backoff import Backoff
from minga.core.events.bus import EventData
from minga.core.events.training import CheckpointArchived, CheckpointNotUploaded, CheckpointUploaded
from minga.identity.keys.keys import Identity
from minga.training.archive.record import ArchiveRecord, read_record, write_record
from minga.training.archive.targets import Target, UploadError

ARCHIVE = "archive"
_MARK, _PARTIAL = ".uploaded", ".partial-"
CLOSE_S = 10.0
"""How long the end of a program waits for a copy that is under way."""

logger = logging.getLogger("minga.training")


@dataclass(frozen=True)
class Archive:
    """What is kept: every checkpoint of a step that `every_steps` divides, copied to `target` if there is one."""

    every_steps: int
    target: Target | None = None


class Archiver:
    """The archive of one run; its thread lives until `close`. `note` emits an event and may be called on any thread."""

    def __init__(
        self, directory: Path, archive: Archive, identity: Identity, note: Callable[[EventData], None]
    ) -> None:
        self.every_steps = archive.every_steps
        self._folder, self._target, self._identity, self._note = directory / ARCHIVE, archive.target, identity, note
        self._cause = ""  # why the last copy failed
        self._news, self._closed = threading.Event(), False
        self._backoff = Backoff(1.0, 600.0)
        self._thread: threading.Thread | None = None
        if archive.target is not None:
            self._thread = threading.Thread(target=self._copy_all, name="minga-archive", daemon=True)
            self._thread.start()

    def add(self, checkpoint: Path, record: ArchiveRecord) -> None:
        """Keep the checkpoint in the folder `checkpoint`. Raises `OSError` if the disk refuses."""
        kept = self._folder / checkpoint.name
        if not kept.exists():
            partial = self._folder / f"{_PARTIAL}{checkpoint.name}"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(checkpoint, partial, copy_function=_link)
            write_record(partial, record, self._identity)
            partial.rename(kept)
            self._note(CheckpointArchived(step=record.step, path=str(kept)))
        self._news.set()

    def waiting(self) -> list[Path]:
        """The archived checkpoints that are not copied yet, oldest first."""
        kept = sorted(path for path in self._folder.glob("step-*") if path.is_dir())
        return [path for path in kept if not _mark(path).exists()]

    def close(self) -> None:
        """Let the copy that is under way end, for some seconds at most; the others are made after the next start."""
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    # ---- on the archive's own thread

    def _copy_all(self) -> None:
        while True:
            pause_s = self._copy_waiting()
            if self._closed:
                return
            self._news.wait(pause_s)
            self._news.clear()

    def _copy_waiting(self) -> float | None:
        """How long to wait before the next try; None until there is a new checkpoint."""
        for path in self.waiting():
            if self._closed:
                break
            try:
                self._copy(path)
            except (UploadError, OSError) as error:
                self._note(CheckpointNotUploaded(step=_step(path), why=str(error)[:300]))
                if cause_of(error) != self._cause:
                    self._cause = cause_of(error)
                    logger.warning("an archived checkpoint was not copied, which is tried again: %s: %s", path, error)
                return self._backoff.next_s()
            self._backoff.overcome()
            if self._cause:
                self._cause = ""
                logger.warning("archived checkpoints are copied again, from step %d on", _step(path))
        return None

    def _copy(self, path: Path) -> None:
        if self._target is None:
            return
        begun = time.monotonic()
        self._target.upload(path)
        _mark(path).touch()
        self._note(CheckpointUploaded(step=_step(path), seconds=round(time.monotonic() - begun, 3)))


def archived(directory: Path) -> list[ArchiveRecord]:
    """The records of the archive of the run in `directory`, oldest first. Raises `ConfigurationError` for a bad one."""
    return [read_record(path) for path in sorted((directory / ARCHIVE).glob("step-*")) if path.is_dir()]


def cause_of(error: BaseException) -> str:
    """What an error comes from: the same words for all files that one cause concerns."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}{_MARK}")


def _link(source: str, target: str) -> None:
    """The same content under another name; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
