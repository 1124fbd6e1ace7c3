"""An exclusive lock on a file that ends with its process.

Theory of operation. The operating system keeps the lock and drops it when the process dies, in whatever way. So no
stale lock can stay behind. No lock file is needed: the lock lies on the file that it protects. Windows locks ranges of
bytes and forbids others to read them, so there the lock lies on one byte far behind the end of the file.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

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
