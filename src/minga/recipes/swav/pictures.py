"""Pictures as a run has them, and what the organiser makes of them: which train, which are held out, and which of them
figures are made with.

They are of one size, with labels, in one file; or files as they are, which travel with the run or are streamed. Which
are held out follows from the content of each alone. Pictures travel in the order of their ranks, so that the first ones
are a random part.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import store
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.data.files import stored_tensors
from minga.recipes.data.hold_out import content_rank, parted
from minga.recipes.data.hub import opened, rows_of
from minga.recipes.images.loading import MAX_BYTES, open_picture, square
from minga.recipes.images.source import hub_rows, picture_file
from minga.recipes.interface import Files
from minga.recipes.swav.settings import DIGITS, ImageData

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


def is_shard(name: str) -> bool:
    """Whether a file of a run is one of these."""
    return name.startswith(_PREFIX)


class EncodedSet:
    """The pictures of the tar files of a run, in their order. Raises `ConfigurationError` if these are damaged."""

    def __init__(self, files: Files) -> None:
        self._places: list[tuple[Path, int, int]] = []
        for name in sorted(files):
            if is_shard(name):
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


# ---- Picture files of a folder, or of a data set of the Hugging Face hub, one after the other.
#
# Both are opened by `datasets`, streamed, with pictures left undecoded: nothing is copied or downloaded as a whole.


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
    in_folder, names = data.source == "folder", dict[str, int]()
    column = "image" if in_folder else data.image_column
    for row in _folder_rows(data.folder) if in_folder else hub_rows(data, order=order):
        found = row.get(column)
        path = found.get("path") if isinstance(found, dict) else None
        name = repr(path[-200:]) if isinstance(path, str) and path else "a picture"
        yield EncodedPicture(picture_file(row, column), _label(row.get(data.label_column), names), name)


def _folder_rows(folder: str) -> Iterator[Mapping[str, Any]]:
    what, place = f"data.folder = {folder!r}", Path(folder).expanduser()
    if not (folder and place.is_dir()):
        raise ConfigurationError(f"{what}: no such folder")
    # By a pattern of our own: the library's take "train" and "test" in a name for splits, and leave out the rest.
    everything = f"{escape(place.resolve().as_posix())}/**"
    for row in rows_of(opened(what, "imagefolder", data_files={"train": everything}, split="train"), what):
        found = row.get("image")
        path = found.get("path") if isinstance(found, dict) and found.get("bytes") is None else None
        yield row if path is None else {**row, "image": {"path": path, "bytes": _content(path)}}


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error


def _label(value: object, names: dict[str, int]) -> int:
    """The number of a class; classes with names are numbered as they come."""
    if isinstance(value, bool) or value is None:
        return UNLABELLED
    if isinstance(value, int):
        return value if 0 <= value < 1 << 20 else UNLABELLED
    return names.setdefault(value, len(names)) if isinstance(value, str) else UNLABELLED


# ---- The files of a run.


TRAINING_FILE: Final = "images.safetensors"
HELDOUT_FILE: Final = "heldout.safetensors"
PROBE_FILE: Final = "probe.safetensors"
"""Training pictures of one size, where training reads files: for figures."""

MAX_HELDOUT: Final = 5_000
MAX_PROBE: Final = 10_000
FEWEST: Final = 2
MAX_EVALUATION_BYTES: Final = 64 << 20
MAX_SCANNED: Final = 20_000
"""Pictures of a streamed source that the organiser reads to find those that are held out."""

MAX_TRAVELLING_BYTES: Final = 4 << 30


def prepared_files(data: ImageData, side: int) -> dict[str, bytes]:
    """The files of a run; pictures for figures have `side` pixels a side where training reads picture files.

    Raises `ConfigurationError` if pictures cannot be found or read, or are too few or too many.
    """
    if data.source == DIGITS:
        return packed_files(digit_pictures(), data.heldout_fraction)
    if data.is_packed:
        return packed_files(_squares(_bounded(encoded_pictures(data)), data.packed_size), data.heldout_fraction)
    if data.source == "folder":
        return _travelling_files(_bounded(encoded_pictures(data)), data.heldout_fraction, side)
    return _scanned_files(islice(encoded_pictures(data), MAX_SCANNED), data.heldout_fraction, side)


def packed_files(found: PictureSet, heldout_fraction: float) -> dict[str, bytes]:
    """The files of a run that trains on pictures of one size. Raises `ConfigurationError` for too few or too many."""
    training, heldout = split_pictures(found, heldout_fraction)
    files = {TRAINING_FILE: training.pack()}
    if len(heldout):
        files[HELDOUT_FILE] = heldout.pack()
    if len(files[TRAINING_FILE]) > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"data: the pictures take {len(files[TRAINING_FILE]) >> 20} MiB, and {MAX_FILE_BYTES >> 20} MiB at most "
            "can travel with a run; take a smaller packed_size, or publish them as a data set"
        )
    return files


def split_pictures(found: PictureSet, heldout_fraction: float) -> tuple[PictureSet, PictureSet]:
    """The pictures to train on, and those held out, at most 5,000. Raises `ConfigurationError` for too few."""
    training, heldout = _split([picture.numpy().tobytes() for picture in found.pictures], heldout_fraction)
    return _take(found, training), _take(found, heldout[:MAX_HELDOUT])


def _split(contents: Sequence[bytes], fraction: float) -> tuple[list[int], list[int]]:
    """The numbers of those to train on and of those held out, each in the order of their ranks."""
    ranked = sorted(range(len(contents)), key=lambda number: content_rank(contents[number]))
    training, heldout = parted(ranked, [contents[number] for number in ranked], fraction)
    if len(training) < FEWEST:
        raise ConfigurationError(f"data: {len(training)} pictures to train on are too few")
    return training, heldout


def _travelling_files(pictures: Sequence[EncodedPicture], fraction: float, side: int) -> dict[str, bytes]:
    """Training pictures as the files that they are, in tar files; and pictures of one size for figures."""
    split = _split([picture.body for picture in pictures], fraction)
    training, heldout = ([pictures[number] for number in numbers] for numbers in split)
    for picture in training[_most(side, MAX_PROBE) :]:
        open_picture(picture.body, picture.name)  # the others are read for figures
    return {**pack_files([picture.body for picture in training]), **_evaluation_files(training, heldout, side)}


def _scanned_files(pictures: Iterable[EncodedPicture], fraction: float, side: int) -> dict[str, bytes]:
    """Pictures for figures alone: training pictures are streamed by each peer."""
    training: list[EncodedPicture] = []
    heldout: list[EncodedPicture] = []
    for picture in pictures:
        found, most = (heldout, MAX_HELDOUT) if content_rank(picture.body) < fraction else (training, MAX_PROBE)
        if len(found) < _most(side, most):
            found.append(picture)
        if len(training) == _most(side, MAX_PROBE) and (fraction == 0 or len(heldout) == _most(side, MAX_HELDOUT)):
            break
    if len(training) < FEWEST or (fraction > 0 and not heldout):
        raise ConfigurationError(
            f"data: of the first pictures {len(training)} are to train on and {len(heldout)} are held out: too few"
        )
    return _evaluation_files(training, heldout, side)


def _evaluation_files(
    training: Sequence[EncodedPicture], heldout: Sequence[EncodedPicture], side: int
) -> dict[str, bytes]:
    files = {PROBE_FILE: _squares(training[: _most(side, MAX_PROBE)], side).pack()}
    if heldout:
        files[HELDOUT_FILE] = _squares(heldout[: _most(side, MAX_HELDOUT)], side).pack()
    return files


def _most(side: int, most: int) -> int:
    """How many pictures of this size figures are made with."""
    return min(most, MAX_EVALUATION_BYTES // (3 * side * side))


def _squares(pictures: Sequence[EncodedPicture], side: int, channels: int = 3) -> PictureSet:
    """Middle squares of the pictures, in colour or grey."""
    if not pictures:
        raise ConfigurationError("data: there are no pictures")
    opened = (open_picture(picture.body, picture.name) for picture in pictures)
    shown = (each.convert("L").convert("RGB") if channels == 1 else each for each in opened)
    squares = torch.from_numpy(np.stack([square(each, side)[:, :, :channels] for each in shown]))
    labels = torch.tensor([picture.label for picture in pictures], dtype=torch.int64)
    return PictureSet(squares.permute(0, 3, 1, 2).contiguous(), labels)


def _bounded(pictures: Iterable[EncodedPicture]) -> list[EncodedPicture]:
    """All of them, if they are few enough to travel with a run."""
    found, size = list[EncodedPicture](), 0
    for picture in pictures:
        found.append(picture)
        size += len(picture.body)
        if size > MAX_TRAVELLING_BYTES:
            raise ConfigurationError(
                f"data.folder: more than {MAX_TRAVELLING_BYTES >> 30} GiB of pictures, too much to travel with a run; "
                'publish them as a data set (source = "hub")'
            )
    return found


def _take(found: PictureSet, rows: Sequence[int]) -> PictureSet:
    return PictureSet(found.pictures[rows].contiguous(), found.labels[rows].contiguous())


# ---- A folder of a peer's own pictures, to train on in the place of the run's.


_ALL_HELD_OUT: Final = "--data: all its pictures are held out in this run"


def own_pictures(folders: Sequence[str]) -> list[EncodedPicture]:
    """The picture files in folders. Raises `ConfigurationError` if one cannot be opened, or they hold none."""
    settings = [ImageData(source="folder", folder=str(Path(each).expanduser())) for each in folders]
    pictures = [picture for data in settings for picture in encoded_pictures(data)]
    if not pictures:
        raise ConfigurationError(f"--data {' '.join(folders)}: there are no pictures")
    return pictures


def keep_squares(pictures: Sequence[EncodedPicture], like: PictureSet, heldout: PictureSet | None, path: Path) -> None:
    """Write the pictures as a file of a run, with the size and channels of `like`, and without those held out.

    Raises `ConfigurationError` if none is left, and `StorageError` if the disk refuses.
    """
    found = _squares(pictures, like.pictures.shape[2], like.pictures.shape[1])
    unwanted = _contents(heldout)
    rows = [row for row, picture in enumerate(found.pictures) if _pixels_of(picture) not in unwanted]
    if not rows:
        raise ConfigurationError(_ALL_HELD_OUT)
    labels = torch.full((len(rows),), UNLABELLED, dtype=torch.int64)
    store(path, PictureSet(found.pictures[rows], labels).pack())


def keep_files(pictures: Sequence[EncodedPicture], heldout: PictureSet | None, folder: Path) -> dict[str, Path]:
    """Write the pictures as the files that they are, in tar files; their paths, by name. Those whose middle squares are
    held out are left out.

    Raises `ConfigurationError` for what is no picture and if none is left, and `StorageError` if the disk refuses.
    """
    unwanted, kept = _contents(heldout), list[bytes]()
    for picture in pictures:
        opened = open_picture(picture.body, picture.name)
        side = 0 if heldout is None else heldout.pictures.shape[2]
        if not (side and square(opened, side).transpose(2, 0, 1).tobytes() in unwanted):
            kept.append(picture.body)
    if not kept:
        raise ConfigurationError(_ALL_HELD_OUT)
    return {name: store(folder / name, content) for name, content in pack_files(kept).items()}


def _contents(pictures: PictureSet | None) -> set[bytes]:
    return set() if pictures is None else set(map(_pixels_of, pictures.pictures))


def _pixels_of(picture: Tensor) -> bytes:
    return picture.numpy().tobytes()
