"""Where the bytes of a state lie that is no part of the model: in memory, or, if there are many, in a file.

A peer holds such states for others that download them, while it writes a checkpoint, and while it downloads one itself.
In memory each would take as much as the model and all that the optimizer keeps. So a large one is a file without a
name, mapped into memory: the system has its pages on disk, and gives their memory to other uses whenever it wants. What
was read or written is given back at once by `release`, so that it does not even count as this process's.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import torch

FILED_BYTES: Final = 16 << 20
"""States of so many bytes or more lie in a file."""
PIECE_BYTES: Final = 16 << 20
"""Of a state in a file so much is in memory at a time."""

logger = logging.getLogger("minga.training")


@dataclass(frozen=True, eq=False)
class StateMemory:
    """Bytes of a state, as a flat uint8 tensor; `mapping` if they lie in a file."""

    buffer: torch.Tensor
    mapping: mmap.mmap | None = None

    @classmethod
    def of(cls, size_bytes: int, directory: Path | None = None, *, is_meta: bool = False) -> StateMemory:
        """Zeroed memory, in a file in `directory` if it is large; without a directory, or room there, in memory. With
        `is_meta` it has a size only.

        Raises `RuntimeError` if the memory does not suffice.
        """
        if is_meta:
            return cls(torch.empty(size_bytes, dtype=torch.uint8, device="meta"))
        if directory is not None and size_bytes >= FILED_BYTES:
            try:
                mapping = _mapped(size_bytes, directory)
            except (OSError, ValueError) as error:
                logger.warning(
                    "a state of %d MiB goes to memory: no file in %s: %s", size_bytes >> 20, directory, error
                )
            else:
                return cls(torch.frombuffer(mapping, dtype=torch.uint8), mapping)
        return cls(torch.zeros(size_bytes, dtype=torch.uint8))

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Bytes `start` to `stop` are not needed in memory for now; they stay what they are."""
        if self.mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        stop = len(self.mapping) if stop is None else min(stop, len(self.mapping))
        start -= start % mmap.PAGESIZE
        if stop > start:
            self.mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _mapped(size_bytes: int, directory: Path) -> mmap.mmap:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory, prefix=".state-") as file:
        _reserve(file, size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)


def _reserve(file: IO[bytes], size_bytes: int) -> None:
    """Take the room on disk now: a disk that turns out to be full when a page is written ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size_bytes, len(zeros)):
        file.write(zeros[: size_bytes - start])
    file.flush()
