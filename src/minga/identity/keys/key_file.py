"""The file that holds a peer's key, and a lock on any file, which ends with its process.

A key file is a small JSON object with both halves of the key, which check each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
import sys
import weakref
from pathlib import Path
from typing import Any

import platformdirs

from minga.core.errors import IdentityError, reason_of

FORMAT = "minga-identity-1"
MAX_FILE_BYTES = 4096
ADVICE = "Restore it from a backup, or move it away to start as a new peer with a new key."
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)


def default_path() -> Path:
    """`identity.json` in the folder for this user's application data."""
    return platformdirs.user_data_path("minga", appauthor=False) / "identity.json"


def read(path: Path) -> tuple[bytes, str] | None:
    """Seed and peer id as stored at `path`, or None if there is no such file.

    Raises `IdentityError` if it is damaged, unreadable or, on POSIX, accessible to other users.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IdentityError(
            f"the key file {path} cannot be opened: {reason_of(error)}; choose another --identity"
        ) from error
    try:
        _check_mode(path, os.fstat(descriptor))
        # One read of a regular file returns all of it, up to the limit.
        body = os.read(descriptor, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise IdentityError(f"the key file {path} cannot be read: {reason_of(error)}") from error
    finally:
        os.close(descriptor)
    return _parse(path, body)


def create(path: Path, seed: bytes, peer_id: str) -> None:
    """Store a key at `path`, readable by its owner only, unless a file is already there.

    The file appears complete or not at all. Raises `IdentityError` if the disk refuses.
    """
    body = json.dumps({"format": FORMAT, "peer_id": peer_id, "secret_key": seed.hex()}, indent=1).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            _publish(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise IdentityError(
            f"the key file {path} cannot be written: {reason_of(error)}; choose another --identity, or --ephemeral"
        ) from error


def _publish(temporary: Path, path: Path) -> None:
    """Give the file its final name unless that is taken; the first of several processes wins."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:
        # No hard links on this file system. Windows refuses to rename onto an existing file, as wished; elsewhere a
        # second process that creates the key within the same instant could still replace it.
        with contextlib.suppress(FileExistsError):
            if not path.exists():
                temporary.rename(path)


def _check_mode(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise IdentityError(f"{path} is not a file; choose another --identity")
    if os.name == "posix" and status.st_mode & 0o077:
        raise IdentityError(
            f"other users of this machine may open the key file {path} (mode {stat.S_IMODE(status.st_mode):04o}). "
            f"If nobody did, run: chmod 600 '{path}'. Otherwise move it away, and a new key is made at the next start."
        )


def _parse(path: Path, body: bytes) -> tuple[bytes, str]:
    damaged = IdentityError(f"the key file {path} is damaged or is no key file. {ADVICE}")
    if len(body) > MAX_FILE_BYTES:
        raise damaged
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(fields, dict):
        raise damaged
    if isinstance(kind := fields.get("format"), str) and kind.startswith("minga-identity-") and kind != FORMAT:
        raise IdentityError(f"the key file {path} was written by another version of minga ({kind[:40]}); update minga")
    secret, peer_id = fields.get("secret_key"), fields.get("peer_id")
    if fields.keys() != {"format", "peer_id", "secret_key"} or fields["format"] != FORMAT:
        raise damaged
    if not (
        isinstance(secret, str) and isinstance(peer_id, str) and _KEY.fullmatch(secret) and _KEY.fullmatch(peer_id)
    ):
        raise damaged
    return bytes.fromhex(secret), peer_id


# ---- An exclusive lock on a file that ends with its process.
#
# Theory of operation. The operating system keeps the lock and drops it when the process dies, in whatever way. So no
# stale lock can stay behind. No lock file is needed: the lock lies on the file that it protects. Windows locks ranges
# of bytes and forbids others to read them, so there the lock lies on one byte far behind the end of the file.


if sys.platform == "win32":
    import msvcrt

    _LOCKED_OFFSET = 1 << 30

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCKED_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_OFFSET, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class FileLock:
    """An exclusive lock on an existing file, held until `release` or the end of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def try_acquire(cls, path: Path) -> FileLock | None:
        """Lock the file at `path`, or return None while someone else, here or in another process, holds it.

        Raises `OSError` if the file cannot be opened or the file system has no locks.
        """
        try:
            # Network file systems grant exclusive locks only on files opened for writing.
            descriptor = os.open(path, os.O_RDWR)
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY)
        try:
            locked = _try_lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if not locked:
            os.close(descriptor)
            return None
        return cls(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether this object still holds the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Let others have the file; may be called twice."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            _held.discard(self)
            try:
                _unlock(descriptor)
            finally:
                os.close(descriptor)

    def _forget(self) -> None:
        """Close the copy that a forked child got, which leaves the lock with its parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock._forget()  # noqa: SLF001 (of this very module)
    _held.clear()


if hasattr(os, "register_at_fork"):
    # A forked data loader that outlives its killed parent must not keep the lock alive.
    os.register_at_fork(after_in_child=_forget_all)
