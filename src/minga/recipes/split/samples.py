"""The samples of a run: which of an example are held out, which client has which, and those of a client's own."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save

from minga.core.errors import ConfigurationError
from minga.core.files import store, text_encoding
from minga.recipes.data.files import stored_tensors
from minga.split.examples.network import CutShape
from minga.split.examples.samples import LabelledSamples, example_samples


class DealtSamples:
    """An example as a run deals it out; equal seeds give equal parts, on any machine.

    Raises `ConfigurationError` if it is not installed, or too small for so many clients.
    """

    def __init__(self, name: str, heldout: float, clients: int, seed: int) -> None:
        samples = example_samples(name)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(samples.labels)))
        kept = max(1, round(heldout * len(order)))
        self.heldout, self.training = samples.rows(order[:kept]), samples.rows(order[kept:])
        self._parts = np.array_split(np.arange(len(order) - kept), clients)
        if not len(self._parts[-1]):
            raise ConfigurationError(f'recipe.split: "{name}" has too few samples for {clients} clients')

    def of_client(self, number: int) -> LabelledSamples:
        """The training samples of one client, counted from 0. Raises `ConfigurationError` for one that is not there."""
        if not 0 <= number < len(self._parts):
            raise ConfigurationError(f"--part {number + 1}: this run has the parts 1 to {len(self._parts)}")
        return self.training.rows(torch.from_numpy(self._parts[number]))


# ---- Samples of one's own: text files with one sample a line, values and then the class, with commas between them.


OWN_FILE: Final = "own-samples.safetensors"
_MAX_BYTES: Final = 1 << 30


def tables(patterns: Sequence[str]) -> list[Path]:
    """The tables that `patterns` name. Raises `ConfigurationError` if there are none."""
    paths = sorted({Path(found) for pattern in patterns for found in glob(pattern)})
    if not paths:
        raise ConfigurationError(f"--data {' '.join(patterns)}: there is no such file")
    return paths


def store_tables(patterns: Sequence[str], shape: CutShape, folder: Path) -> Path:
    """Read the tables that `patterns` name, and keep them in `folder`; the path of the file.

    Values are taken as they are: clients have to scale a column alike. A first line that is no numbers is skipped.
    Raises `ConfigurationError` for tables that cannot be read or have other sizes, `StorageError` if the disk refuses.
    """
    table = np.concatenate([_read(path, shape) for path in tables(patterns)])
    inputs = torch.from_numpy(table[:, :-1].astype(np.float32)).reshape(-1, *shape.sample).contiguous()
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    return store(folder / OWN_FILE, save({"inputs": inputs, "labels": labels}))


def read_stored(path: Path, shape: CutShape) -> LabelledSamples:
    """What `store_tables` kept. Raises `ConfigurationError` if it is something else, `StorageError` if it is gone."""
    inputs, labels = stored_tensors(path, "samples", "inputs", "labels")
    inputs, labels = inputs.float(), labels.long()
    if tuple(inputs.shape[1:]) != shape.sample or inputs.shape[:1] != labels.shape or not len(labels):
        raise ConfigurationError(f"{path}: samples of another shape than {shape.sample}")
    if not bool(inputs.isfinite().all()) or int(labels.min()) < 0 or int(labels.max()) >= shape.classes:
        raise ConfigurationError(f"{path}: a value is not finite, or a class is not below {shape.classes}")
    return LabelledSamples(inputs, labels, shape.classes)


def _read(path: Path, shape: CutShape) -> npt.NDArray[np.float64]:
    width = int(np.prod(shape.sample))
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"--data {path}: larger than {_MAX_BYTES >> 30} GiB")
        encoding = text_encoding(path)
        with path.open(encoding=encoding) as file:
            first = file.readline()
            skipped = 0 if _is_numbers(first) else 1
        table = np.loadtxt(path, delimiter=",", skiprows=skipped, dtype=np.float64, ndmin=2, encoding=encoding)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--data {path}: cannot be read as a table: {str(error)[:200]}") from error
    if table.shape[1] != width + 1 or not len(table):
        raise ConfigurationError(f"--data {path}: {table.shape[1]} columns; {width} values and a class are needed")
    classes = table[:, -1]
    if not np.isfinite(table).all() or (classes != np.floor(classes)).any():
        raise ConfigurationError(f"--data {path}: a value is not finite, or a class is no whole number")
    if classes.min() < 0 or classes.max() >= shape.classes:
        raise ConfigurationError(f"--data {path}: classes go from 0 to {shape.classes - 1}")
    return table


def _is_numbers(line: str) -> bool:
    try:
        return bool([float(each) for each in line.split(",")])
    except ValueError:
        return False
