"""Checkpoints that outlive the organiser's machine: kept for good, signed, and copied elsewhere.

    checkpoint on disk ─▶ archive/step-… with a record (signed) ─▶ a folder, a bucket, or the hub

The archiver copies on a thread of its own, and goes on where it stopped.

Called by host and peer, where the organiser asks for an archive, by checkpointer, which runs the archiver, and by
`minga runs receipts`, which reads records. The module knows folders and files, and nothing of peers.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from minga.core.aio import Backoff
from minga.core.errors import ConfigurationError
from minga.core.events.bus import EventData
from minga.core.events.training import CheckpointArchived, CheckpointNotUploaded, CheckpointUploaded
from minga.core.files import flush_folder, flush_tree, read_struct
from minga.identity.keys.keys import Identity, verify
from minga.keeping.complete_checkpoints import unchanging

# ---- The record: what an archived checkpoint says of itself, signed by the peer that archived it.
#
# The record names the digest of the state, which the checkpoint's manifest is checked against. So a record that
# `verify` accepts, beside a checkpoint that can be read, shows which run, step and state that peer vouches for.


RECORD_FILE = "archived.json"
MAX_RECORD_BYTES = 1 << 14
SIGNATURE_CONTEXT = b"minga archived checkpoint"

_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ArchiveRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One checkpoint of a run. `loss` is the swarm's, None if it was not known; `time` is Unix time in seconds."""

    run_id: _Hex32
    name: Annotated[str, msgspec.Meta(max_length=64)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    digest: _Hex32
    loss: float | None
    time: float
    peer: _Hex32

    def encode(self) -> bytes:
        """The bytes that are signed."""
        return msgspec.json.encode(self)


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: ArchiveRecord
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


def write_record(folder: Path, record: ArchiveRecord, identity: Identity) -> None:
    """Write the record into the folder of its checkpoint, signed. Raises `OSError` if the disk refuses."""
    signature = identity.sign(record.encode(), context=SIGNATURE_CONTEXT).hex()
    body = msgspec.json.format(msgspec.json.encode(_Signed(record, signature)), indent=1)
    (folder / RECORD_FILE).write_bytes(body + b"\n")


def read_record(folder: Path) -> ArchiveRecord:
    """The record of an archived checkpoint. Raises `ConfigurationError` if it is missing, damaged, or not signed by
    the peer that it names.
    """
    path = folder / RECORD_FILE
    try:
        signed = read_struct(path, _Signed, MAX_RECORD_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    record = signed.record
    if not verify(record.peer, bytes.fromhex(signed.signature), record.encode(), context=SIGNATURE_CONTEXT):
        raise ConfigurationError(f"{path}: its signature is not that of {record.peer[:16]}")
    return record


# ---- Targets: where archived checkpoints are copied to, a folder, a bucket, or the Hugging Face hub.
#
# A copy is complete once its record is there, which is therefore written last. A copy that was interrupted is made
# again, over what is there of it.


HUB = "hf://"


class UploadError(Exception):
    """A copy failed; it may work later. The text says why."""


class Target(ABC):
    """Where copies go. All methods block, and raise `UploadError` where the other side or the way there fails."""

    @abstractmethod
    def upload(self, folder: Path) -> None:
        """Copy a checkpoint's folder there, under its own name, the record last."""


def target_of(url: str) -> Target:
    """The place that `upload_to` names.

    That is a local folder; `hf://OWNER/NAME`, a model repository of the hub; or a URL of fsspec, such as
    `s3://BUCKET/FOLDER`. Raises `ConfigurationError` for an unknown kind, or if the package for it is missing.
    """
    if url.startswith(HUB):
        return _Hub(url.removeprefix(HUB))
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        if "://" not in url:
            raise ConfigurationError(f"checkpoints.upload_to = {url!r}: install fsspec to copy checkpoints") from error
        raise ConfigurationError(f"checkpoints.upload_to = {url!r}: install fsspec for such addresses") from error
    try:
        system, path = url_to_fs(str(Path(url).expanduser()) if "://" not in url else url)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigurationError(f"checkpoints.upload_to = {url!r}: {error}") from error
    return _Folder(system, str(path))


class _Folder(Target):
    """Any file system that fsspec knows."""

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path.rstrip("/")

    def upload(self, folder: Path) -> None:
        there = f"{self._path}/{folder.name}"
        try:
            self._system.makedirs(there, exist_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == RECORD_FILE):
                self._system.put_file(str(path), f"{there}/{path.name}")
        except Exception as error:  # each file system has errors of its own
            raise UploadError(f"{type(error).__name__}: {error}") from error


class _Hub(Target):
    """A model repository; each checkpoint is one commit, which is there whole or not at all."""

    def __init__(self, repository: str) -> None:
        if repository.count("/") != 1 or not all(repository.split("/")):
            raise ConfigurationError(f"checkpoints.upload_to = {HUB + repository!r}: write {HUB}OWNER/NAME")
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise ConfigurationError("checkpoints.upload_to: install huggingface_hub to copy to the hub") from error
        self._repository, self._hub = repository, HfApi()

    def upload(self, folder: Path) -> None:
        try:
            self._hub.create_repo(self._repository, exist_ok=True, private=True)
            self._hub.upload_folder(
                repo_id=self._repository,
                folder_path=folder,
                path_in_repo=folder.name,
                commit_message=f"minga checkpoint {folder.name}",
            )
        except Exception as error:  # of the network, the hub's answer, or the token
            raise UploadError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}") from error


# ---- The archiver: it keeps some checkpoints for good, and copies them elsewhere, beside training.
#
# Theory of operation. A checkpoint that is due is copied into `archive/` of the run's folder, by hard links where the
# disk has them, with a signed record. `archive/` is also the queue of copies: one thread copies each checkpoint
# without a mark to the target and then marks it. So a copy that failed, or that was cut off by a crash or a full disk,
# is made later, at the latest after the next start. A failed copy is tried again after a growing pause, and training
# never waits.


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
        for partial in self._folder.glob(f"{_PARTIAL}*"):  # of a process that was killed
            shutil.rmtree(partial, ignore_errors=True)
        if archive.target is not None:
            self._thread = threading.Thread(target=self._copy_all, name="minga-archive", daemon=True)
            self._thread.start()

    def add(self, checkpoint: Path, record: ArchiveRecord) -> None:
        """Keep the checkpoint in the folder `checkpoint`. Raises `OSError`, with nothing half-written left behind, if
        the disk refuses.
        """
        kept = self._folder / checkpoint.name
        if not kept.exists():
            partial = self._folder / f"{_PARTIAL}{checkpoint.name}"
            try:
                partial.mkdir(parents=True)
                with unchanging(checkpoint.parent):
                    for path in checkpoint.iterdir():
                        if path.suffix != ".part":  # of a process that was killed
                            _link(path, partial / path.name)
                write_record(partial, record, self._identity)
                flush_tree(partial)
                partial.rename(kept)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            flush_folder(self._folder)
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


def cause_of(error: BaseException) -> str:
    """What an error comes from: the same words for all files that one cause concerns."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}{_MARK}")


def _link(source: Path, target: Path) -> None:
    """The same content under another name; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
