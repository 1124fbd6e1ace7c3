"""The files of a run, as a recipe reads them, and those that a peer keeps in their place."""

from __future__ import annotations

from pathlib import Path

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import store
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


def keep(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all; its folder is made. Raises `StorageError` if the disk refuses."""
    store(path, content)
    return path
