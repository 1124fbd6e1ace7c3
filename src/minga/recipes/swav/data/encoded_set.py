"""Picture files that travel with a run as they are: tar files in the manner of WebDataset, read at any place."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.images.loading import MAX_BYTES
from minga.recipes.interface import Files

SHARD_BYTES: Final = 128 << 20
_PREFIX: Final = "pictures-"


def pack_files(bodies: Sequence[bytes]) -> dict[str, bytes]:
    """Tar files of some 128 MiB with all pictures, by name; equal pictures give equal bytes."""
    shards: dict[str, bytes] = {}
    start = 0
    while start < len(bodies):
        buffer, size = io.BytesIO(), 0
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            while start < len(bodies) and (size == 0 or size + len(bodies[start]) <= SHARD_BYTES):
                info = tarfile.TarInfo(f"{start:08d}.img")
                info.size = len(bodies[start])
                tar.addfile(info, io.BytesIO(bodies[start]))
                size += len(bodies[start])
                start += 1
        shards[f"{_PREFIX}{len(shards):04d}.tar"] = buffer.getvalue()
    return shards


class EncodedSet:
    """The pictures of the tar files of a run, in their order. Raises `ConfigurationError` if these are damaged."""

    def __init__(self, files: Files) -> None:
        self._places: list[tuple[Path, int, int]] = []
        for name in sorted(files):
            if name.startswith(_PREFIX):
                self._places += _places(files[name])
        if not self._places:
            raise ConfigurationError("the run came without pictures to train on")

    def __len__(self) -> int:
        return len(self._places)

    def body(self, number: int) -> bytes:
        """The file of one picture. Raises `StorageError` if it cannot be read."""
        path, offset, size = self._places[number]
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


def _places(path: Path) -> list[tuple[Path, int, int]]:
    try:
        with tarfile.open(path, mode="r:") as tar:
            members = [member for member in tar if member.isreg()]
    except (tarfile.TarError, ValueError, RecursionError, MemoryError) as error:  # headers of extensions
        raise ConfigurationError(f"{path}: not a tar file of pictures: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    if any(not 0 <= member.size <= MAX_BYTES for member in members):
        raise ConfigurationError(f"{path}: a picture has not 0 to {MAX_BYTES >> 20} MiB")
    return [(path, member.offset_data, member.size) for member in members]
