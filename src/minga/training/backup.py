"""A run in one encrypted file, so that it outlives the machine it is hosted on.

    run's folder + key ─▶ tar ─▶ encrypted by a passphrase ─▶ FILE ─▶ … ─▶ a run's folder + key, elsewhere

Called by cli/keeping. It needs no network.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from minga.core.errors import ConfigurationError, IdentityError, StorageError, reason_of
from minga.core.files import flush_folder, flush_tree
from minga.identity.keys import key_file
from minga.identity.keys.keys import Identity
from minga.keeping.complete_checkpoints import unchanging
from minga.keeping.known_runs import FOLDER_DIGITS, KnownRun, known_run
from minga.keeping.rejoin import FILE as HOST_LOCK
from minga.keeping.rejoin import check_organiser
from minga.training.state.checkpoints import Checkpoint, CheckpointStore
from minga.training.state.own_state import is_own_state

# ---- The contents of a backup: those files that cannot be had again, and the newest checkpoint.
#
# Left out are older checkpoints, the archive (which has copies of its own, see `checkpoints.upload_to`), downloads
# that are under way, locks, unfinished files, and the key file of an earlier restoration, since the key is kept anyway;
# and what the peer alone has, which rounds may have counted since.


CHECKPOINTS = "checkpoints"
_KEY_NAME = "organiser-key"
_KEY_FILE = f"{_KEY_NAME}.json"
_LEFT_OUT = frozenset({"archive", CHECKPOINTS, "downloads", HOST_LOCK, _KEY_FILE})
MAX_PARTS = 8


def backup_files(folder: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest intact checkpoint, None without one, and the files to keep beside it.

    Raises `StorageError` if there are checkpoints and all of them are damaged, and `ConfigurationError` for a file that
    no backup can bring back.
    """
    checkpoints = folder / CHECKPOINTS
    _check_leads_somewhere(checkpoints)
    newest = CheckpointStore(checkpoints).load() if checkpoints.is_dir() else None
    tops = [top for top in sorted(folder.iterdir()) if top.name not in _LEFT_OUT and not is_own_state(top.name)]
    files = [path for top in tops for path in _files(top)]
    for path in files:
        safe_name(path.relative_to(folder).as_posix())
    return newest, files


def safe_name(name: str) -> PurePosixPath:
    """The name of a file in a backup, which must lead into the folder that it is restored to.

    Raises `ConfigurationError`.
    """
    path = PurePosixPath(name)
    parts = name.split("/")
    if path.is_absolute() or "\\" in name or ":" in name or len(parts) > MAX_PARTS or {"", ".", ".."} & {*parts}:
        raise ConfigurationError(f"{name[:80]!r} is no name of a file in a run's folder")
    return path


def _files(top: Path) -> Iterator[Path]:
    if top.name.startswith(".") or top.name.endswith(".part"):
        return
    _check_leads_somewhere(top)
    if top.is_dir() and top.resolve() not in map(Path.resolve, top.parents):  # a link may lead back
        for path in sorted(top.iterdir()):
            yield from _files(path)
    elif top.is_file():
        yield top


def _check_leads_somewhere(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise ConfigurationError(f"{path} leads to no file or folder; is a disk missing?")


# ---- The sealed file: only a passphrase opens it, and it is written and read from front to back.
#
#     magic | log2 of scrypt's n (1 byte) | salt (16 bytes) | frames
#
# Each frame is 1 MiB of content under ChaCha20-Poly1305, the last one shorter or empty. The nonce of a frame is its
# number and whether it is the last (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár 2015), so frames
# cannot be exchanged, left out or cut off unnoticed. The key is scrypt's of passphrase and salt, one for each file.


MAGIC: Final = b"minga backup 1\n"
LOG2_N: Final = 17
MIN_LOG2_N, MAX_LOG2_N = 14, 20
SALT_BYTES, TAG_BYTES, FRAME_BYTES = 16, 16, 1 << 20
MIN_PASSPHRASE_CHARACTERS: Final = 8


class SealedWriter:
    """Writes to `file`, which stays open; `close` writes the last frame."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
            raise ConfigurationError(f"a passphrase has at least {MIN_PASSPHRASE_CHARACTERS} characters")
        self._file, self._waiting, self._number = file, bytearray(), 0
        self._header = MAGIC + bytes([LOG2_N]) + secrets.token_bytes(SALT_BYTES)
        self._cipher = _cipher(passphrase, self._header)
        file.write(self._header)

    def write(self, data: bytes) -> int:
        """Add some content."""
        self._waiting += data
        while len(self._waiting) > FRAME_BYTES:  # at least a byte stays, or nothing was written: the last frame
            self._seal(bytes(self._waiting[:FRAME_BYTES]), is_last=False)
            del self._waiting[:FRAME_BYTES]
        return len(data)

    def close(self) -> None:
        """Write what is left."""
        self._seal(bytes(self._waiting), is_last=True)
        self._waiting.clear()

    def _seal(self, content: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), content, self._header))
        self._number += 1


class SealedReader:
    """Reads what a `SealedWriter` wrote. Raises `ConfigurationError` for another file, passphrase or content."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        self._header = file.read(len(MAGIC) + 1 + SALT_BYTES)
        if not self._header.startswith(MAGIC) or len(self._header) != len(MAGIC) + 1 + SALT_BYTES:
            raise ConfigurationError("this file is no backup of minga")
        self._file, self._number, self._content = file, 0, bytearray()
        self._cipher = _cipher(passphrase, self._header)
        self._next = file.read(FRAME_BYTES + TAG_BYTES)
        if not self._next:
            raise ConfigurationError("the backup cannot be read: the file is damaged")

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        while len(self._content) < size and self._next:
            self._content += self._open_frame()
        taken = bytes(self._content[:size])
        del self._content[:size]
        return taken

    def _open_frame(self) -> bytes:
        frame, self._next = self._next, self._file.read(FRAME_BYTES + TAG_BYTES)
        try:
            content = self._cipher.decrypt(_nonce(self._number, is_last=not self._next), frame, self._header)
        except InvalidTag as error:
            why = "the passphrase is wrong, or the file is damaged" if self._number == 0 else "the file is damaged"
            raise ConfigurationError(f"the backup cannot be read: {why}") from error
        self._number += 1
        return content


def _cipher(passphrase: str, header: bytes) -> ChaCha20Poly1305:
    log2_n, salt = header[len(MAGIC)], header[len(MAGIC) + 1 :]
    if not MIN_LOG2_N <= log2_n <= MAX_LOG2_N:
        raise ConfigurationError("the backup cannot be read: the file is damaged")
    n, r = 1 << log2_n, 8
    key = hashlib.scrypt(passphrase.encode(), salt=salt, n=n, r=r, p=1, maxmem=129 * n * r, dklen=32)
    return ChaCha20Poly1305(key)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


# ---- Writing the backup of a run, and making a run's folder of it again.


ATTEMPTS = 5
"""A checkpoint that is pruned while it is read is no reason to give up: there is a newer one."""
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
        raise StorageError(f"the backup {out} cannot be written: {reason_of(error)}") from error
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            partial.unlink()
    return Backup(run, step, out.stat().st_size)


def _write(folder: Path, partial: Path, identity: Identity, passphrase: str) -> int | None:
    """Write it to the new file `partial`; returns the step of the checkpoint, None without one."""
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with open(descriptor, "wb") as file, contextlib.ExitStack() as opened:
        sealed = SealedWriter(file, passphrase)  # takes a second, in which a fast run prunes checkpoints
        newest, files = backup_files(folder)
        with unchanging(folder / CHECKPOINTS):
            files += [] if newest is None else _files(newest.path)
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
    return None if newest is None else newest.snapshot.step


def restore_backup(file: Path, runs: Path, key: Path | None, passphrase: str) -> Restored:
    """Make the run's folder again, below `runs`, and the file `key` with the organiser's key.

    Without `key` that is the key file of this user, or if there is another key in it, `organiser-key.json` in the run's
    folder. Raises `ConfigurationError` for a wrong passphrase, a damaged file, a `key` with another key in it, or a run
    that lies there already; `StorageError` or `IdentityError` if the disk refuses. No folder is left behind then.
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
        flush_tree(partial)
        partial.rename(folder)
        try:
            stored = _store_key(identity, key, folder)
        except BaseException:
            folder.rename(partial)  # which is deleted: without its key the run is not restored
            raise
        flush_folder(runs)
    except OSError as error:
        raise StorageError(f"the backup {file} cannot be restored: {reason_of(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Restored(known_run(folder), stored)


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
                with contextlib.suppress(OSError):  # some disks take no times
                    os.utime(path, (entry.mtime, entry.mtime))
        while reader.read(1 << 20):  # up to the last frame, so that a file that was cut off is noticed
            pass
    except (tarfile.TarError, IdentityError, EOFError) as error:
        raise ConfigurationError(f"the backup cannot be read: {error}") from error
    if identity is None:
        raise ConfigurationError("the backup has no key of the organiser")
    return identity


def _store_key(identity: Identity, path: Path | None, folder: Path) -> Path:
    candidates = [path] if path is not None else [key_file.default_path(), folder / _KEY_FILE]
    for candidate in candidates:
        stored = key_file.read(candidate)
        if stored is None:
            key_file.create(candidate, identity.seed, identity.peer_id)
            stored = key_file.read(candidate)
        if stored is not None and stored[1] == identity.peer_id:
            return candidate
    raise ConfigurationError(f"{candidates[-1]} holds another key: name another file with --identity")
