"""The files of a run, as a recipe reads them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.interface import Files


def file_of(files: Files, name: str) -> Path:
    """A file of the run. Raises `ConfigurationError` if it did not come."""
    if name not in files:
        raise ConfigurationError(f"the run came without the file {name}, which its recipe needs")
    return files[name]


def body_of(files: Files, name: str) -> bytes:
    """The content of a file of the run. Raises as `file_of`, and `StorageError` if it cannot be read."""
    path = file_of(files, name)
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error


def stored_tensors(path: Path, what: str, *names: str) -> list[torch.Tensor]:
    """Tensors in a file, memory-mapped. Raises `ConfigurationError` if it is no file of `what`, and `StorageError` if
    it cannot be read.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return [file.get_tensor(name) for name in names]
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error
    except SafetensorError as error:
        raise ConfigurationError(f"{path}: not a file of {what}: {str(error)[:200]}") from error
