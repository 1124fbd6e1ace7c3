"""A folder of a peer's own pictures, to train on in the place of the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.recipes.images.loading import open_picture, square
from minga.recipes.swav.data.encoded_set import pack_files
from minga.recipes.swav.data.picture_set import UNLABELLED, PictureSet
from minga.recipes.swav.data.settings import ImageData
from minga.recipes.swav.data.streamed import encoded_pictures


def own_bodies(folders: Sequence[str]) -> list[bytes]:
    """The picture files in folders. Raises `ConfigurationError` if one cannot be opened, or they hold none."""
    settings = [ImageData(source="folder", folder=str(Path(each).expanduser())) for each in folders]
    bodies = [picture.body for data in settings for picture in encoded_pictures(data)]
    if not bodies:
        raise ConfigurationError(f"--data {' '.join(folders)}: there are no pictures")
    return bodies


def write_squares(bodies: Sequence[bytes], like: PictureSet, heldout: PictureSet | None, path: Path) -> None:
    """Write the pictures as a file of a run, with the size and channels of `like`, and without those held out.

    Raises `ConfigurationError` if none is left, and `StorageError` if the disk refuses.
    """
    channels, side = like.pictures.shape[1:3]
    pictures = [open_picture(body) for body in bodies]
    shown = [picture.convert("L").convert("RGB") if channels == 1 else picture for picture in pictures]
    squares = np.stack([square(picture, side)[:, :, :channels].transpose(2, 0, 1) for picture in shown])
    unwanted = set() if heldout is None else {picture.numpy().tobytes() for picture in heldout.pictures}
    kept = [each for each in squares if each.tobytes() not in unwanted]
    if not kept:
        raise ConfigurationError("--data: all its pictures are held out in this run")
    labels = torch.full((len(kept),), UNLABELLED, dtype=torch.int64)
    _write(path, PictureSet(torch.from_numpy(np.stack(kept)), labels).pack())


def write_bodies(bodies: Sequence[bytes], folder: Path) -> dict[str, Path]:
    """Write the pictures as the files that they are, in tar files; their paths, by name.

    Raises `ConfigurationError` for what is no picture, and `StorageError` if the disk refuses.
    """
    for body in bodies:
        open_picture(body)
    shards = pack_files(bodies)
    for name, content in shards.items():
        _write(folder / name, content)
    return {name: folder / name for name in shards}


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
