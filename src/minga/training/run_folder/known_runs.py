"""The runs that lie on this machine: which they are, how far they came, and what they take."""

from __future__ import annotations

import contextlib
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from minga.core.errors import ConfigurationError, StorageError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_duration
from minga.identity.links.signed_spec import SignedRunSpec
from minga.training.run_folder.host_lock import HostLock
from minga.training.run_folder.rejoin import signed_spec
from minga.training.state.complete_checkpoints import MANIFEST_NAME, complete_checkpoints

FOLDER_DIGITS = 16
"""Digits of the run id that name a run's folder."""


def runs_folder(directory: Path | None) -> Path:
    """Where the folders of runs lie: `directory`, or by default in the user's data folder."""
    return directory or platformdirs.user_data_path("minga") / "runs"


@dataclass(frozen=True)
class KnownRun:
    """One run's folder. `step` is that of the newest checkpoint, None without one; `age_s` counts seconds since it was
    written, or without one since the folder changed.
    """

    signed: SignedRunSpec
    spec: RunSpec
    directory: Path
    step: int | None
    age_s: float

    @property
    def progress(self) -> str:
        """Step and age in words."""
        return "no checkpoint yet" if self.step is None else f"step {self.step}, {format_duration(self.age_s)} old"

    def size_bytes(self) -> int:
        """What all files in the folder take now."""
        return sum(_size_bytes(path) for path in self.directory.rglob("*"))

    def remove(self) -> None:
        """Delete the folder.

        Raises `ConfigurationError` while it is hosted from, and `StorageError` if the disk refuses.
        """
        try:
            HostLock.take(self.directory).release()
        except ConfigurationError:  # it says how to take part, which is not what was asked for
            raise ConfigurationError(
                f"a process on this machine hosts this run from {self.directory}: end that process before you remove it"
            ) from None
        try:
            shutil.rmtree(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be removed: {error}") from error


def known_runs(base: Path) -> list[KnownRun]:
    """All runs below `base`, the latest first. Folders without a readable run spec are left out."""
    found = []
    for folder in base.glob("*/"):
        with contextlib.suppress(ConfigurationError, StorageError, OSError):  # or one that is being removed
            found.append(known_run(folder))
    return sorted(found, key=lambda run: run.age_s)


def run_with_id(text: str, base: Path) -> KnownRun:
    """The run below `base` whose id begins with `text`. Raises `ConfigurationError` if that is none, or several."""
    found = [run for run in known_runs(base) if text and run.signed.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    how_many = "no run" if not found else counted(len(found), "run")
    raise ConfigurationError(
        f"{text!r}: {how_many} in {base} with an id that begins like this; `minga runs` lists them"
    )


def known_run(folder: Path) -> KnownRun:
    """The run whose folder this is. Raises `ConfigurationError`, see `signed_spec`."""
    signed, spec = signed_spec(folder)
    checkpoints = folder / "checkpoints"
    found = complete_checkpoints(checkpoints) if checkpoints.is_dir() else []
    newest = max((_written_at(path) for _, path in found), default=folder.stat().st_mtime)
    step = found[-1][0] if found else None
    return KnownRun(signed, spec, folder, step, max(0.0, time.time() - newest))


def _written_at(checkpoint: Path) -> float:
    """The time of its manifest, since that of its folder is when it was laid there, by a restored backup perhaps."""
    manifest = checkpoint / MANIFEST_NAME
    return (manifest if manifest.is_file() else checkpoint).stat().st_mtime


def _size_bytes(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:  # a checkpoint that was replaced meanwhile
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
