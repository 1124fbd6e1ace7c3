"""A folder that is there whole or not at all, for what a recipe exports."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.exported import Provenance


@contextmanager
def new_folder(directory: Path, provenance: Provenance) -> Iterator[Path]:
    """A folder beside `directory` to write to, which takes its name at the end; nothing is left if the block raises.
    It says in `minga.json` where the model is from.

    Raises `ConfigurationError` if `directory` has content, `StorageError` if the disk refuses.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError(f"{directory}: already there and not empty; choose another directory")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise StorageError(f"{directory}: cannot be created: {error.strerror}") from error
    try:
        yield unfinished
        provenance.write(unfinished)
        if directory.exists():
            directory.rmdir()
        for path in (unfinished, *unfinished.rglob("*")):  # some libraries write files that their owner alone may read
            path.chmod(0o755 if path.is_dir() else 0o644)
        unfinished.rename(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
