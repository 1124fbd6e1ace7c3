"""Files that are there whole or not at all, whenever the program is killed; and texts as people's programs save
them.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

NOT_TEXT = "not a text in UTF-8: save it as UTF-8, in PowerShell with `Set-Content -Encoding utf8`"
"""What is said of a file that is none."""

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


def text_encoding(path: Path) -> str:
    """The encoding of a text file by its first bytes: UTF-8, or UTF-16 as PowerShell writes what is redirected to a
    file. Raises `OSError`.
    """
    with path.open("rb") as file:
        return _encoding(file.read(2))


def decode_text(data: bytes, errors: str = "strict") -> str:
    """The text in such a file. Raises `UnicodeDecodeError`, which is a `ValueError`, if `errors` are not replaced."""
    return data.decode(_encoding(data[:2]), errors)


def read_line(path: Path, most: int) -> str:
    """The line of at most `most` characters that a file holds, or a pipe such as `<(pass show minga)`, which is read
    once. Longer ones come too long by a few characters. Raises `OSError` and `UnicodeDecodeError`.
    """
    with path.open("rb") as file:
        return decode_text(file.read(4 * (most + 3)))[: most + 3].strip("\r\n")


def _encoding(head: bytes) -> str:
    return "utf-16" if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
