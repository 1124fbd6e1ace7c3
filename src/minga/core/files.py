"""Files that are there whole or not at all, whenever the program is killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path that this gives, which takes the place of `path` afterwards; a missing folder is made.

    Until then, and if the block raises, the old file stays. Raises `OSError` if the disk refuses; nothing is left
    behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, body: bytes) -> None:
    """Write `body` to `path`; see `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(body)
