"""A word from another terminal: the file `paused` in a run's folder keeps this machine's peers out of the run.

Each process that goes by it has a file there, too, which it keeps locked: so the others know whether there is one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from minga.core.errors import StorageError
from minga.identity.keys.file_lock import FileLock

PAUSE_FILE = "paused"
_LISTENER = "joined-"


def is_paused(directory: Path) -> bool:
    """Whether the owner of this machine paused the run whose folder this is."""
    return (directory / PAUSE_FILE).exists()


def set_paused(directory: Path, *, paused: bool) -> bool:
    """Pause or resume; whether that changed anything. Raises `StorageError` if the disk refuses."""
    was_paused = is_paused(directory)
    try:
        if paused:
            (directory / PAUSE_FILE).touch()
        else:
            (directory / PAUSE_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{directory / PAUSE_FILE} cannot be changed: {error}") from error
    return was_paused != paused


@contextlib.contextmanager
def listening(directory: Path) -> Iterator[None]:
    """Count among the `listeners` of a run meanwhile, if its folder can be written."""
    path = directory / f"{_LISTENER}{os.getpid()}"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.touch()
            held.callback(path.unlink, missing_ok=True)
            if (lock := FileLock.try_acquire(path)) is not None:
                held.callback(lock.release)
        yield


def listeners(directory: Path) -> int:
    """How many other processes of this machine take part in the run whose folder this is, as their owner allows."""
    found = 0
    for path in directory.glob(f"{_LISTENER}*"):
        with contextlib.suppress(OSError):  # it ended just now
            if path.name == f"{_LISTENER}{os.getpid()}":
                continue
            if (lock := FileLock.try_acquire(path)) is None:
                found += 1
                continue
            path.unlink(missing_ok=True)  # of one that was killed
            lock.release()
    return found
