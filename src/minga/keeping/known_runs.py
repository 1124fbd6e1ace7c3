"""The runs on this machine: which they are, how far they came, what they take, and what their organiser noted here."""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import platformdirs

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import keep, read_kept
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_duration
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.availability import is_in_use
from minga.keeping.complete_checkpoints import MANIFEST_NAME, complete_checkpoints
from minga.keeping.rejoin import HostLock, signed_spec

FOLDER_DIGITS = 16
"""Digits of the run id that name a run's folder."""
TEMPORARY = "temporary-"
"""How the name begins of a folder that a peer with a key for one time only deletes when it ends."""
_UNNAMED = re.compile(rf"{TEMPORARY}\w+|[0-9a-f]{{{FOLDER_DIGITS}}}")
"""Names of folders that peers made, whether or not a run spec lies there."""


Folder = TypeVar("Folder", bound="RunFolder")


def runs_folder(directory: Path | None) -> Path:
    """Where the folders of runs lie: `directory`, or by default in the user's data folder."""
    return directory or platformdirs.user_data_path("minga") / "runs"


@dataclass(frozen=True)
class RunFolder:
    """A folder that a peer of this machine made; `age_s` counts seconds since it changed."""

    directory: Path
    age_s: float

    @property
    def id(self) -> str:
        """How commands name it."""
        return self.directory.name

    @property
    def name(self) -> str:
        """The run's, if it is known."""
        return "without a run spec"

    @property
    def progress(self) -> str:
        """How far it came, and its age in words."""
        return f"changed {format_duration(self.age_s)} ago"

    @property
    def is_temporary(self) -> bool:
        """Whether it is of a peer whose key was for one time only, and that deletes it unless it is killed."""
        return self.directory.name.startswith(TEMPORARY)

    @property
    def is_used(self) -> bool:
        """Whether it is hosted from, a peer takes part from it, or it is one for a time only and its peer lives."""
        if is_in_use(self.directory):
            return True
        try:
            HostLock.take(self.directory).release()
        except ConfigurationError:
            return True
        return False

    def size_bytes(self) -> int:
        """What all files in the folder take now."""
        return sum(_size_bytes(path) for path in self.directory.rglob("*"))

    def remove(self) -> None:
        """Delete the folder.

        Raises `ConfigurationError` while it is used, and `StorageError` if the disk refuses.
        """
        if self.is_used:
            raise ConfigurationError(
                f"a process on this machine takes part in a run from {self.directory}: end that process before you "
                "remove it"
            )
        try:
            shutil.rmtree(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be removed: {reason_of(error)}") from error


@dataclass(frozen=True)
class KnownRun(RunFolder):
    """One run's folder. `step` is that of the newest checkpoint, None without one; `age_s` counts seconds since it was
    written, or without one since the folder changed.
    """

    signed: SignedRunSpec
    spec: RunSpec
    step: int | None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.signed.run_id

    @property
    def name(self) -> str:
        """As the run spec says."""
        return self.spec.name

    @property
    def progress(self) -> str:
        """Step and age in words; of a model that is cut, whose parts have no checkpoint in common, the age."""
        if self.spec.split.is_on and self.step is None:
            return super().progress
        return "no checkpoint yet" if self.step is None else f"step {self.step}, {format_duration(self.age_s)} old"


def run_folders(base: Path) -> list[RunFolder]:
    """All that peers of this machine left below `base`, the latest first; without a readable run spec, too, as after
    the death of a peer whose key was for one time only. Folders of peers that were killed before they kept anything are
    left out.
    """
    found = list[RunFolder]()
    for folder in base.glob("*/"):
        with contextlib.suppress(OSError):  # it is being removed
            try:
                found.append(known_run(folder))
            except (ConfigurationError, StorageError):
                if _UNNAMED.fullmatch(folder.name) and (is_in_use(folder) or any(folder.iterdir())):
                    found.append(RunFolder(folder, _age_s(folder.stat().st_mtime)))
    return sorted(found, key=lambda run: run.age_s)


def known_runs(base: Path) -> list[KnownRun]:
    """All runs below `base`, the latest first. Folders without a readable run spec are left out."""
    return [run for run in run_folders(base) if isinstance(run, KnownRun)]


def organisers(base: Path) -> set[str]:
    """The keys that host the runs below `base`."""
    return {run.signed.organiser for run in known_runs(base)}


def run_with_id(text: str, base: Path) -> KnownRun:
    """The run below `base` whose id begins with `text`. Raises `ConfigurationError` if that is none, or several."""
    return only_one(text, known_runs(base), base)


def only_one(text: str, folders: Sequence[Folder], base: Path) -> Folder:
    """The one of these `folders` below `base` whose id begins with `text`. Raises `ConfigurationError`."""
    found = [run for run in folders if text and run.id.startswith(text)]
    if len(found) == 1:
        return found[0]
    how_many = "no run" if not found else counted(len(found), "run")
    raise ConfigurationError(
        f"{text!r}: {how_many} in {base} with an id that begins like this; `minga runs` lists them"
    )


def known_run(folder: Path) -> KnownRun:
    """The run whose folder this is. Raises `ConfigurationError`, see `signed_spec`."""
    signed, spec = signed_spec(folder)
    found = complete_checkpoints(folder / "checkpoints")
    newest = max((_written_at(path) for _, path in found), default=folder.stat().st_mtime)
    step = found[-1][0] if found else None
    return KnownRun(folder, _age_s(newest), signed, spec, step)


def _age_s(written_at: float) -> float:
    return max(0.0, time.time() - written_at)


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


# ---- The chosen strategy: why a run with `training.strategy = "auto"` began with the strategy that its spec names.
#
# The spec that is published names the choice, and not why it was made. The reason is kept in the run's folder: whoever
# asks later asks the organiser's machine.


CHOSEN_STRATEGY_FILE = "chosen-strategy.json"
_MAX_BYTES = 1 << 16


class ChosenStrategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the strategy, and in one line its settings, for which peers it was chosen, and why."""

    strategy: Annotated[str, msgspec.Meta(max_length=200)]
    reason: Annotated[str, msgspec.Meta(max_length=4000)]

    @classmethod
    def read(cls, folder: Path) -> ChosenStrategy | None:
        """What was kept; None where nothing was chosen, or where the file is damaged, which is logged."""
        return read_kept(folder / CHOSEN_STRATEGY_FILE, cls, _MAX_BYTES)

    def write(self, folder: Path) -> None:
        """Keep it. Raises `StorageError` if the disk refuses."""
        keep(folder / CHOSEN_STRATEGY_FILE, self)


# ---- Own settings: what an organiser set for their own machine, kept in the run's folder and not published.
#
# They are read from the run spec. The published spec has these settings at their defaults, so a run that is hosted
# again would lack them.


OWN_SETTINGS_FILE = "own-settings.json"


class OwnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The private settings of a run spec; see `network.announce`, `checkpoints.archive_every` and `upload_to`."""

    announce: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()
    archive_every: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    upload_to: str | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> OwnSettings:
        """Those of the organiser's own spec."""
        to = spec.checkpoints.upload_to
        if to is not None and "://" not in to:  # the run may be hosted again from another working directory
            to = str(Path(to).expanduser().absolute())
        return cls(spec.network.announce, spec.checkpoints.archive_every, to)

    @classmethod
    def read(cls, folder: Path) -> OwnSettings:
        """Those that were kept; without the file, or with a damaged one, none are set."""
        return read_kept(folder / OWN_SETTINGS_FILE, cls, _MAX_BYTES) or cls()

    def write(self, folder: Path) -> None:
        """Keep them. Raises `StorageError` if the disk refuses."""
        keep(folder / OWN_SETTINGS_FILE, self)

    def updated(self, newer: OwnSettings) -> OwnSettings:
        """These, but for what `newer` sets. Raises `ConfigurationError` if the two do not go together."""
        every, to = newer.archive_every or self.archive_every, newer.upload_to or self.upload_to
        if to is not None and not every:
            raise ConfigurationError("checkpoints.upload_to needs checkpoints.archive_every")
        return OwnSettings(newer.announce or self.announce, every, to)
