"""Chunks of a download on disk, so that one that was dropped or killed goes on where it was: of a file, or of a state.

All chunks lie in their places in one file. Hashing finds those that are already there, so a crash in the middle of a
write does no harm. Two processes that download the same into the same file may even help each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path
from typing import Protocol, TypeVar

from minga.core.events.bus import EventBus
from minga.core.events.training import StateCacheFailed
from minga.training.state.manifest import CHUNK_BYTES, Manifest

T = TypeVar("T")


class Chunked(Protocol):
    """What can be fetched in chunks of `CHUNK_BYTES`, each verified by a digest that is known before."""

    @property
    def digest(self) -> str:
        """Its name among the donors, 64 hexadecimal digits."""

    @property
    def label(self) -> str:
        """What error messages call it."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks together."""

    @property
    def chunk_count(self) -> int:
        """How many there are; the last one may be short."""

    def chunk_size(self, index: int) -> int:
        """Bytes of one chunk."""

    def verify_chunk(self, index: int, data: memoryview) -> bool:
        """Whether `data` is chunk `index`."""


class PartFile:
    """The file at `path` with the chunks of `wanted` that are here. Any thread; all methods wait for the disk, and
    raise `OSError`. Once it is closed nothing is written any more.
    """

    def __init__(self, path: Path, wanted: Chunked) -> None:
        self.path, self._wanted = path, wanted
        self._file: BufferedRandom | None = None
        self._lock = threading.Lock()  # two donors' chunks may come at once

    def open(self) -> bool:
        """Have a file of the right size, which takes no room yet where files may have holes. Whether there was one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        was_there = self.path.exists()
        self.path.touch()
        self._file = self.path.open("r+b")
        self._file.truncate(self._wanted.total_bytes)
        return was_there

    def read(self, index: int, target: memoryview) -> bool:
        """Fill `target`, which is as long as the chunk; whether that is here."""
        with self._lock:
            if self._file is None:
                return False
            self._file.seek(index * CHUNK_BYTES)
            is_whole = self._file.readinto(target) == target.nbytes
        return is_whole and self._wanted.verify_chunk(index, target)

    def found(self) -> set[int]:
        """The chunks that are here."""
        scratch = memoryview(bytearray(CHUNK_BYTES))
        indices = range(self._wanted.chunk_count)
        return {index for index in indices if self.read(index, scratch[: self._wanted.chunk_size(index)])}

    def write(self, index: int, data: memoryview) -> None:
        """Keep a verified chunk."""
        with self._lock:
            if self._file is not None:
                self._file.seek(index * CHUNK_BYTES)
                self._file.write(data)
                self._file.flush()

    def close(self) -> None:
        """What is in the file stays there."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def remove(self) -> None:
        """Close and delete it, as far as the disk lets; raises nothing."""
        with contextlib.suppress(OSError):  # the last bytes could not be flushed, and are not wanted any more
            self.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


# ---- The cache of a state that is downloaded: a file that is named by its digest.
#
# Only one state is kept: chunks of an older state are of no use, since every optimizer step changes nearly all of them.
# When the disk refuses, the download goes on without a cache.


_OURS = re.compile(r"[0-9a-f]{64}\.chunks")


class DownloadCache:
    """The cached chunks of one state in `directory`; none if that is None."""

    def __init__(self, directory: Path | None, manifest: Manifest, events: EventBus) -> None:
        self._part = None if directory is None else PartFile(directory / f"{manifest.digest}.chunks", manifest)
        self._events = events

    async def fill(
        self, missing: list[int], place: Callable[[int], memoryview], release: Callable[[int], None]
    ) -> list[int]:
        """Read the chunks that are here into their places, and `release` each; returns the indices of the others."""
        found = await self._try(lambda part: _fill(part, missing, place, release))
        return [index for index in missing if index not in found] if found else missing

    async def write(self, index: int, data: memoryview) -> None:
        """Keep a verified chunk."""
        await self._try(lambda part: part.write(index, data))

    async def close(self) -> None:
        """Close the file; its chunks stay for the next time."""
        await self._try(PartFile.close)

    async def remove(self) -> None:
        """Delete the file, because the download is complete."""
        await self._try(PartFile.remove)
        self._part = None

    async def _try(self, work: Callable[[PartFile], T]) -> T | None:
        """Do `work` outside the event loop; give the cache up if the disk refuses."""
        if (part := self._part) is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, work, part)
        except OSError as error:
            if self._part is part:
                self._part = None
                await loop.run_in_executor(None, part.remove)
                self._events.emit(StateCacheFailed(reason=str(error)))
            return None


def _fill(
    part: PartFile, missing: list[int], place: Callable[[int], memoryview], release: Callable[[int], None]
) -> set[int]:
    part.open()
    for other in part.path.parent.iterdir():
        if _OURS.fullmatch(other.name) and other != part.path:
            with contextlib.suppress(OSError):  # another process may be using it
                other.unlink()
    found = set()
    for index in missing:
        if part.read(index, place(index)):
            found.add(index)
        release(index)
    return found
