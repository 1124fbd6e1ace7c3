"""A word from another terminal: the file `paused` in a run's folder keeps this machine's peers out of the run."""

from __future__ import annotations

from pathlib import Path

from minga.core.errors import StorageError

PAUSE_FILE = "paused"


def is_paused(directory: Path) -> bool:
    """Whether the owner of this machine paused the run whose folder this is."""
    return (directory / PAUSE_FILE).exists()


def set_paused(directory: Path, *, paused: bool) -> bool:
    """Pause or resume; whether that changed anything. Raises `StorageError` if the disk refuses."""
    was_paused = is_paused(directory)
    try:
        if paused:
            (directory / PAUSE_FILE).touch()
        else:
            (directory / PAUSE_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{directory / PAUSE_FILE} cannot be changed: {error}") from error
    return was_paused != paused
