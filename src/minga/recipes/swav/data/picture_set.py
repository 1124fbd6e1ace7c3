"""Pictures of one size, with labels, as one file that travels with a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from minga.core.errors import ConfigurationError, StorageError

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
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
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
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found = PictureSet(file.get_tensor(_PICTURES), file.get_tensor(_LABELS))
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ConfigurationError(f"{path}: not a file of pictures: {error}") from error
    pictures, labels = found.pictures, found.labels
    fits = pictures.dtype == torch.uint8 and pictures.ndim == 4 and pictures.shape[1] == channels
    fits = fits and 1 <= pictures.shape[2] <= _MAX_SIDE and 1 <= pictures.shape[3] <= _MAX_SIDE
    if not (fits and labels.dtype == torch.int64 and labels.shape == pictures.shape[:1] and len(found)):
        raise ConfigurationError(f"{path}: not a file of labelled pictures with {channels} channels")
    if int(labels.min()) < UNLABELLED or int(labels.max()) >= 1 << 20:
        raise ConfigurationError(f"{path}: labels are not those of classes")
    return found
