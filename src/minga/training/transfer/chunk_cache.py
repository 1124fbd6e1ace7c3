"""Chunks of a download on disk, so that a dropped or killed download goes on where it was.

The cache of a state is one file of its bytes, named by its digest. Hashing finds the chunks that are already there, so
a crash in the middle of a write does no harm. Two processes that download the same state into the same folder may even
help each other. Only one state is kept: chunks of an older state are of no use, since every optimizer step changes
nearly all of them. When the disk refuses, the download goes on without a cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path
from typing import TypeVar

from minga.core.events.bus import EventBus
from minga.core.events.training import StateCacheFailed
from minga.training.state.manifest import CHUNK_BYTES, Manifest

_OURS = re.compile(r"[0-9a-f]{64}\.chunks")

T = TypeVar("T")


class DownloadCache:
    """The cached chunks of one state in `directory`; none if that is None."""

    def __init__(self, directory: Path | None, manifest: Manifest, events: EventBus) -> None:
        self._directory, self._manifest, self._events = directory, manifest, events
        self._name = f"{manifest.digest}.chunks"
        self._file: BufferedRandom | None = None
        self._lock = asyncio.Lock()

    async def fill(
        self, missing: list[int], place: Callable[[int], memoryview], release: Callable[[int], None]
    ) -> list[int]:
        """Read the chunks that are here into their places, and `release` each; returns the indices of the others."""
        if self._directory is None:
            return missing
        found = await self._try(lambda directory: self._read(directory, missing, place, release))
        return [index for index in missing if index not in found] if found else missing

    async def write(self, index: int, data: memoryview) -> None:
        """Keep a verified chunk."""
        if self._file is not None:
            async with self._lock:
                await self._try(lambda _: self._write(index, data))

    async def close(self) -> None:
        """Close the file; its chunks stay for the next time."""
        async with self._lock:
            await self._try(lambda _: self._close())

    async def remove(self) -> None:
        """Delete the file, because the download is complete or the disk is full."""
        async with self._lock:
            await self._try(lambda _: self._remove())

    async def _try(self, work: Callable[[Path], T]) -> T | None:
        """Do `work` outside the event loop; give the cache up if the disk refuses."""
        if self._directory is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, work, self._directory)
        except OSError as error:
            await loop.run_in_executor(None, self._remove)
            self._events.emit(StateCacheFailed(reason=str(error)))
            return None

    def _read(
        self,
        directory: Path,
        missing: list[int],
        place: Callable[[int], memoryview],
        release: Callable[[int], None],
    ) -> set[int]:
        directory.mkdir(parents=True, exist_ok=True)
        for other in directory.iterdir():
            if _OURS.fullmatch(other.name) and other.name != self._name:
                with contextlib.suppress(OSError):  # another process may be using it
                    other.unlink()
        (directory / self._name).touch()
        self._file = (directory / self._name).open("r+b")
        self._file.truncate(self._manifest.total_bytes)
        found = set()
        for index in missing:
            if self._read_chunk(self._file, index, place(index)):
                found.add(index)
            release(index)
        return found

    def _read_chunk(self, file: BufferedRandom, index: int, target: memoryview) -> bool:
        file.seek(index * CHUNK_BYTES)
        return file.readinto(target) == target.nbytes and self._manifest.verify_chunk(index, target)

    def _write(self, index: int, data: memoryview) -> None:
        if self._file is not None:
            self._file.seek(index * CHUNK_BYTES)
            self._file.write(data)
            self._file.flush()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):  # the last bytes could not be flushed, and are not wanted any more
            self._close()
        if self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / self._name).unlink(missing_ok=True)
        self._directory = None
