"""Files that are there whole or not at all, whenever the program is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Content: TypeAlias = "bytes | Path"
"""What a file holds: its bytes, or a file with the same content, for what is too large to lie in memory."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path that this gives, which takes the place of `path` afterwards; a missing folder is made.

    Until then, and if the block raises, the old file stays. Raises `OSError` if the disk refuses; nothing is left
    behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def in_pieces(data: bytes, piece_bytes: int = 64 << 10) -> Iterator[bytes]:
    """The same in pieces, for a server that waits for clients that read slowly, and holds one piece for each."""
    for start in range(0, len(data), piece_bytes):
        yield data[start : start + piece_bytes]


def write_atomically(path: Path, content: Content) -> None:
    """Write `content` to `path`; see `replacing`."""
    with replacing(path) as partial:
        write(partial, content)


def write(path: Path, content: Content) -> None:
    """Write `content` to `path`, whose folder is made. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
