"""Write the backup of a run, and make a run's folder of it again."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from minga.core.errors import ConfigurationError, IdentityError, StorageError
from minga.identity.keys import key_file
from minga.identity.keys.keys import Identity
from minga.training.backup.contents import backup_files, safe_name
from minga.training.backup.sealed_file import SealedReader, SealedWriter
from minga.training.run_folder.known_runs import FOLDER_DIGITS, KnownRun, known_run
from minga.training.run_folder.rejoin import check_organiser

ATTEMPTS = 5
"""A checkpoint that is pruned while it is read is no reason to give up: there is a newer one."""
_KEY_NAME = "organiser-key"
_MAX_KEY_BYTES = 4096


@dataclass(frozen=True)
class Backup:
    """What was written: the run, the `step` of its checkpoint (None without one), and the size of the file."""

    run: KnownRun
    step: int | None
    size_bytes: int


@dataclass(frozen=True)
class Restored:
    """A run that lies on this machine again, and the file with its organiser's key."""

    run: KnownRun
    key: Path


def write_backup(folder: Path, out: Path, identity: Identity, passphrase: str) -> Backup:
    """Write the run in `folder`, with the key of its organiser, to the new file `out`.

    The run may be hosted meanwhile. Raises `ConfigurationError` if `identity` is not its organiser's or `out` exists,
    `StorageError` if the disk refuses; no unfinished file is left behind.
    """
    run = known_run(folder)
    check_organiser(run.signed, identity)
    if out.exists():
        raise ConfigurationError(f"--out {out}: already there; choose another name")
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                step = _write(folder, partial, identity, passphrase)
                break
            except FileNotFoundError:
                partial.unlink(missing_ok=True)
                if not attempts_left:
                    raise
        partial.rename(out)
    except OSError as error:
        raise StorageError(f"the backup {out} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return Backup(run, step, out.stat().st_size)


def _write(folder: Path, partial: Path, identity: Identity, passphrase: str) -> int | None:
    """Write it to the new file `partial`; returns the step of the checkpoint, None without one."""
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with open(descriptor, "wb") as file, contextlib.ExitStack() as opened:
        sealed = SealedWriter(file, passphrase)  # takes a second, in which a fast run prunes checkpoints
        step, files = backup_files(folder)
        # A file that is open can be read to its end though its checkpoint is pruned meanwhile.
        contents = [opened.enter_context(path.open("rb")) for path in files]
        with tarfile.open(fileobj=cast("IO[bytes]", sealed), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, _KEY_NAME, io.BytesIO(identity.seed), len(identity.seed), 0.0)
            for path, content in zip(files, contents, strict=True):  # as long as it is now: a history may grow
                found = os.fstat(content.fileno())
                _add(tar, path.relative_to(folder).as_posix(), content, found.st_size, found.st_mtime)
        sealed.close()
        file.flush()
        os.fsync(file.fileno())
    return step


def restore_backup(file: Path, runs: Path, key: Path | None, passphrase: str) -> Restored:
    """Make the run's folder again, below `runs`, and the file `key` with the organiser's key.

    Without `key` that is the key file of this user, or if there is another key in it, `organiser-key.json` in the run's
    folder. Raises `ConfigurationError` for a wrong passphrase, a damaged file, or a run that lies there already.
    """
    partial = runs / f".restoring-{secrets.token_hex(4)}"
    try:
        with file.open("rb") as opened:
            reader = SealedReader(opened, passphrase)
            partial.mkdir(parents=True)
            identity = _extract(reader, partial)
        run = known_run(partial)
        check_organiser(run.signed, identity)
        folder = runs / run.signed.run_id[:FOLDER_DIGITS]
        if folder.exists():
            raise ConfigurationError(f"{folder} is there already: move it away to restore the backup")
        partial.rename(folder)
    except OSError as error:
        raise StorageError(f"the backup {file} cannot be restored: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Restored(known_run(folder), _store_key(identity, key, folder))


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size_bytes: int, written_at: float) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size_bytes, written_at
    tar.addfile(entry, content)


def _extract(reader: SealedReader, folder: Path) -> Identity:
    """Write the files into the folder; the organiser's key."""
    identity: Identity | None = None
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise ConfigurationError(f"the backup holds {entry.name[:80]!r}, which is no file")
                if entry.name == _KEY_NAME:
                    identity = Identity.from_seed(content.read(_MAX_KEY_BYTES))
                    continue
                path = folder / safe_name(entry.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as target:
                    shutil.copyfileobj(content, target)
                if entry.mtime:  # a backup of an earlier minga has no times
                    with contextlib.suppress(OSError):  # nor do some disks take them
                        os.utime(path, (entry.mtime, entry.mtime))
        while reader.read(1 << 20):  # up to the last frame, so that a file that was cut off is noticed
            pass
    except (tarfile.TarError, IdentityError, EOFError) as error:
        raise ConfigurationError(f"the backup cannot be read: {error}") from error
    if identity is None:
        raise ConfigurationError("the backup has no key of the organiser")
    return identity


def _store_key(identity: Identity, path: Path | None, folder: Path) -> Path:
    candidates = [path] if path is not None else [key_file.default_path(), folder / f"{_KEY_NAME}.json"]
    for candidate in candidates:
        stored = key_file.read(candidate)
        if stored is None:
            key_file.create(candidate, identity.seed, identity.peer_id)
            stored = key_file.read(candidate)
        if stored is not None and stored[1] == identity.peer_id:
            return candidate
    raise ConfigurationError(
        f"the run is restored to {folder}, but {candidates[-1]} holds another key: name another file with --identity"
    )
