"""What the organiser makes of the pictures: which train, which are held out, and which of them figures are made with.

That follows from the content of each picture alone. Pictures travel in the order of their ranks, so that the first ones
are a random part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from minga.core.errors import ConfigurationError
from minga.core.files import store
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.data.hold_out import content_rank, held_out
from minga.recipes.images.loading import open_picture, square
from minga.recipes.swav.pictures import (
    UNLABELLED,
    EncodedPicture,
    PictureSet,
    digit_pictures,
    encoded_pictures,
    pack_files,
)
from minga.recipes.swav.settings import DIGITS, ImageData

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
            "can travel with a run; take a smaller packed_size, or publish them as a data set or shards"
        )
    return files


def split_pictures(found: PictureSet, heldout_fraction: float) -> tuple[PictureSet, PictureSet]:
    """The pictures to train on, and those held out, at most 5,000. Raises `ConfigurationError` for too few."""
    contents = [picture.numpy().tobytes() for picture in found.pictures]
    kept_out = np.array(held_out(contents, heldout_fraction), dtype=bool)
    order = np.argsort([content_rank(each) for each in contents], kind="stable")
    training, heldout = (torch.from_numpy(order[kept_out[order] == is_out]) for is_out in (False, True))
    if len(training) < FEWEST:
        raise ConfigurationError(f"data: {len(training)} pictures to train on are too few")
    return _take(found, training), _take(found, heldout[:MAX_HELDOUT])


def _travelling_files(pictures: Sequence[EncodedPicture], fraction: float, side: int) -> dict[str, bytes]:
    """Training pictures as the files that they are, in tar files; and pictures of one size for figures."""
    kept_out = held_out([picture.body for picture in pictures], fraction)
    order = sorted(range(len(pictures)), key=lambda place: content_rank(pictures[place].body))
    training = [pictures[place] for place in order if not kept_out[place]]
    if len(training) < FEWEST:
        raise ConfigurationError(f"data: {len(training)} pictures to train on are too few")
    for picture in training[_most(side, MAX_PROBE) :]:
        open_picture(picture.body, picture.name)  # the others are read for figures
    heldout = [pictures[place] for place in order if kept_out[place]]
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
                'publish them as a data set (source = "hub") or as tar files (source = "shards")'
            )
    return found


def _take(found: PictureSet, rows: torch.Tensor) -> PictureSet:
    return PictureSet(found.pictures[rows].contiguous(), found.labels[rows].contiguous())


# ---- A folder of a peer's own pictures, to train on in the place of the run's.


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
    unwanted = set() if heldout is None else {picture.numpy().tobytes() for picture in heldout.pictures}
    rows = [row for row, picture in enumerate(found.pictures) if picture.numpy().tobytes() not in unwanted]
    if not rows:
        raise ConfigurationError("--data: all its pictures are held out in this run")
    labels = torch.full((len(rows),), UNLABELLED, dtype=torch.int64)
    store(path, PictureSet(found.pictures[rows], labels).pack())


def keep_files(pictures: Sequence[EncodedPicture], folder: Path) -> dict[str, Path]:
    """Write the pictures as the files that they are, in tar files; their paths, by name.

    Raises `ConfigurationError` for what is no picture, and `StorageError` if the disk refuses.
    """
    for picture in pictures:
        open_picture(picture.body, picture.name)
    shards = pack_files([picture.body for picture in pictures])
    return {name: store(folder / name, content) for name, content in shards.items()}
