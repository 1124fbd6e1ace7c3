"""Files that are there whole or not at all, whenever the program is killed."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, body: bytes) -> None:
    """Write `body` to `path`, whose folder is made if it is missing; the old file stays until all is written.

    Raises `OSError` if the disk refuses; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
