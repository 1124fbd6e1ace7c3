"""The complete checkpoints of a folder, by their names alone: what lists them needs no torch.

Several peers of a machine may share the folder. One at a time writes there; what has to find a checkpoint as one writer
left it holds the same lock.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from minga.identity.keys.key_file import FileLock

MANIFEST_NAME = "manifest.json"
LOCK_NAME: Final = ".lock"
MOST_WAIT_S: Final = 60.0
"""How long a process that was stopped may hold the others up."""
_LOOK_S: Final = 0.02
_COMPLETE = re.compile(r"step-(\d{9,16})-([0-9a-f]{12})")


def folder_name(step: int, digest: str) -> str:
    """The name of the folder with the complete checkpoint of this step and state."""
    return f"step-{step:09d}-{digest[:12]}"


def complete_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Step and folder of each complete checkpoint in `directory`, oldest first; none if there is no such folder."""
    found: list[tuple[int, Path]] = []
    if not directory.is_dir():
        return found
    for path in directory.iterdir():
        match = _COMPLETE.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return sorted(found)


@contextlib.contextmanager
def unchanging(directory: Path) -> Iterator[None]:
    """In the block no other thread or process writes a checkpoint in `directory` or gives one another lineage.

    Blocks until it is this one's turn. There is no such protection where the file system has no locks, or after
    `MOST_WAIT_S`.
    """
    lock, until_s = None, time.monotonic() + MOST_WAIT_S
    with contextlib.suppress(OSError):
        (directory / LOCK_NAME).touch()
        while (lock := FileLock.try_acquire(directory / LOCK_NAME)) is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
