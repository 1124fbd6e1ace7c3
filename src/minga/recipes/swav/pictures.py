"""Pictures as a run has them: of one size, with labels, as one file; or files as they are, with the run or streamed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.data.files import stored_tensors
from minga.recipes.data.hub import open_hub, opened, rows_of
from minga.recipes.images.loading import MAX_BYTES
from minga.recipes.interface import Files
from minga.recipes.swav.settings import ImageData

UNLABELLED: Final = -1
_PICTURES, _LABELS = "pictures", "labels"
_MAX_SIDE: Final = 512


@dataclass(frozen=True)
class PictureSet:
    """`pictures` uint8 [n, c, s, s], with c of 1 or 3, and `labels` int64 [n]: a class from 0 on, or -1 for none."""

    pictures: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def is_labelled(self) -> bool:
        """Whether each picture has a class, and there are at least two classes."""
        return len(self) > 0 and bool((self.labels >= 0).all()) and bool((self.labels != self.labels[0]).any())

    def first(self, count: int) -> PictureSet:
        """The first pictures, at most `count`."""
        return PictureSet(self.pictures[:count], self.labels[:count])

    def pack(self) -> bytes:
        """The content of a safetensors file."""
        return save({_PICTURES: self.pictures.contiguous(), _LABELS: self.labels.contiguous()})


def digit_pictures() -> PictureSet:
    """1,797 handwritten digits, 8 pixels a side. Raises `ConfigurationError` if scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigurationError(
            'data.source = "digits": install scikit-learn, which holds the pictures: pip install scikit-learn'
        ) from error
    pictures, labels = load_digits(return_X_y=True)
    grey = np.rint(pictures * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return PictureSet(torch.from_numpy(grey), torch.from_numpy(labels.astype(np.int64)))


def read_pictures(path: Path, channels: int) -> PictureSet:
    """The pictures in a file that `PictureSet.pack` made; they are read as they are needed.

    Raises `ConfigurationError` for any other file, and `StorageError` if the file cannot be read.
    """
    pictures, labels = stored_tensors(path, "pictures", _PICTURES, _LABELS)
    found = PictureSet(pictures, labels)
    fits = pictures.dtype == torch.uint8 and pictures.ndim == 4 and pictures.shape[1] == channels
    fits = fits and 1 <= pictures.shape[2] <= _MAX_SIDE and 1 <= pictures.shape[3] <= _MAX_SIDE
    if not (fits and labels.dtype == torch.int64 and labels.shape == pictures.shape[:1] and len(found)):
        raise ConfigurationError(f"{path}: not a file of labelled pictures with {channels} channels")
    if int(labels.min()) < UNLABELLED or int(labels.max()) >= 1 << 20:
        raise ConfigurationError(f"{path}: labels are not those of classes")
    return found


# ---- Picture files that travel with a run as they are: tar files in the manner of WebDataset, read at any place.


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
            raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error


def _places(path: Path) -> list[tuple[Path, int, int]]:
    try:
        with tarfile.open(path, mode="r:") as tar:
            members = [member for member in tar if member.isreg()]
    except (tarfile.TarError, ValueError, RecursionError, MemoryError) as error:  # headers of extensions
        raise ConfigurationError(f"{path}: not a tar file of pictures: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error
    if any(not 0 <= member.size <= MAX_BYTES for member in members):
        raise ConfigurationError(f"{path}: a picture has not 0 to {MAX_BYTES >> 20} MiB")
    return [(path, member.offset_data, member.size) for member in members]


# ---- Picture files of a folder, of a data set of the Hugging Face hub, or of WebDataset's tar files, one after the
# other.
#
# All are opened by `datasets`, streamed, with pictures left undecoded: nothing is copied or downloaded as a whole.


@dataclass(frozen=True)
class EncodedPicture:
    """A picture file, its class, -1 for none, and what error messages call it."""

    body: bytes
    label: int
    name: str = "a picture"


def encoded_pictures(data: ImageData, *, order: int | None = None) -> Iterator[EncodedPicture]:
    """The pictures of a source; `order` puts the parts of which it consists into another order.

    Raises `ConfigurationError` if it cannot be opened or has no pictures there, `LocalError` if the stream breaks off
    again and again.
    """
    found, column, names = _opened(data), _column(data), dict[str, int]()
    if column not in (found.column_names or []):
        shown = ", ".join(found.column_names or ["none"])
        raise ConfigurationError(f"data.image_column = {column!r}: there is no such column; there are: {shown}")
    for row in rows_of(found, f"data.source = {data.source!r}", order):
        yield EncodedPicture(_body(row, column, data), _label(row.get(data.label_column), names), _name(row, column))


def _opened(data: ImageData) -> Any:
    if data.source == "hub":
        return open_hub(data.name, data.config, data.split, data.revision)
    if data.source == "shards":
        return opened("data.urls", "webdataset", data_files={"train": list(data.urls)}, split="train")
    if not (data.folder and Path(data.folder).is_dir()):
        raise ConfigurationError(f"data.folder = {data.folder!r}: no such folder")
    return opened(f"data.folder = {data.folder!r}", "imagefolder", data_dir=data.folder, split="train")


def _column(data: ImageData) -> str:
    return "image" if data.source == "folder" else data.image_column


def _body(row: Mapping[str, Any], column: str, data: ImageData) -> bytes:
    cell = row.get(column)
    body = cell.get("bytes") if isinstance(cell, dict) else None
    path = cell.get("path") if isinstance(cell, dict) else None
    if body is None and isinstance(path, str) and data.source == "folder":
        try:
            with open(path, "rb") as file:
                body = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    if not isinstance(body, bytes) or len(body) > MAX_BYTES:
        raise ConfigurationError(f"data.image_column = {column!r}: a row has no picture of at most {MAX_BYTES} bytes")
    return body


def _name(row: Mapping[str, Any], column: str) -> str:
    cell = row.get(column)
    path = cell.get("path") if isinstance(cell, dict) else None
    return repr(path[-200:]) if isinstance(path, str) and path else "a picture"


def _label(value: object, names: dict[str, int]) -> int:
    """The number of a class; classes with names are numbered as they come."""
    if isinstance(value, bool) or value is None:
        return UNLABELLED
    if isinstance(value, int):
        return value if 0 <= value < 1 << 20 else UNLABELLED
    return names.setdefault(value, len(names)) if isinstance(value, str) else UNLABELLED
