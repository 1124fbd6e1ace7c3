"""The runs that lie on this machine: which they are, how far they came, and what they take."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from minga.core.errors import ConfigurationError, ProtocolError, StorageError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import format_duration
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.training.run_folder.host_lock import HostLock
from minga.training.run_folder.rejoin import SPEC_FILE
from minga.training.state.checkpoints import CheckpointStore

FOLDER_DIGITS = 16
"""Digits of the run id that name a run's folder."""


def runs_folder(directory: Path | None) -> Path:
    """Where the folders of runs lie: `directory`, or by default in the user's data folder."""
    return directory or platformdirs.user_data_path("minga") / "runs"


@dataclass(frozen=True)
class KnownRun:
    """One run's folder. `step` is that of the newest checkpoint, None without one; `age_s` counts seconds since it was
    written, or without one since the folder changed; `size_bytes` is what all files in the folder take.
    """

    name: str
    run_id: str
    organiser: str
    directory: Path
    step: int | None
    age_s: float
    size_bytes: int

    @property
    def progress(self) -> str:
        """Step and age in words."""
        at = "no checkpoint yet" if self.step is None else f"step {self.step}"
        return f"{at}, {format_duration(self.age_s)} old"

    def remove(self) -> None:
        """Delete the folder.

        Raises `ConfigurationError` while it is hosted from, and `StorageError` if the disk refuses.
        """
        lock = HostLock.take(self.directory)
        try:
            shutil.rmtree(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be removed: {error}") from error
        finally:
            lock.release()


def known_runs(base: Path) -> list[KnownRun]:
    """All runs below `base`, the latest first. Folders without a readable run spec are left out."""
    found = [run for folder in sorted(base.glob("*/")) if (run := known_run(folder)) is not None]
    return sorted(found, key=lambda run: run.age_s)


def known_run(folder: Path) -> KnownRun | None:
    """The run whose folder this is; None if it has no readable run spec."""
    try:
        signed, spec = signed_spec(folder)
    except ConfigurationError:
        return None
    checkpoints = folder / "checkpoints"
    steps = CheckpointStore(checkpoints).steps() if checkpoints.is_dir() else []
    newest = max((path.stat().st_mtime for path in checkpoints.glob("step-*")), default=folder.stat().st_mtime)
    size = sum(path.stat().st_size for path in _files(folder))
    age_s = max(0.0, time.time() - newest)
    return KnownRun(spec.name, signed.run_id, signed.organiser, folder, max(steps, default=None), age_s, size)


def signed_spec(folder: Path) -> tuple[SignedRunSpec, RunSpec]:
    """The run spec that lies in a run's folder, with its organiser's signature.

    Raises `ConfigurationError` if there is none, if it is damaged, or if this version of minga cannot follow it.
    """
    path = folder / SPEC_FILE
    try:
        signed = SignedRunSpec.decode(path.read_bytes()[: MAX_SIGNED_SPEC_BYTES + 1])
        return signed, signed.verify(signed.run_id, signed.organiser)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: not the folder of a run, {SPEC_FILE} is missing (a peer with an ephemeral key leaves none)"
        ) from error
    except ProtocolError as error:
        raise ConfigurationError(f"{path}: damaged: {error.message}") from error


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
