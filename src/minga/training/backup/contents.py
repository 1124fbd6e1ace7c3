"""Which files of a run's folder a backup holds: what cannot be had again, and the newest checkpoint.

Left out are older checkpoints, the archive (which has copies of its own, see `checkpoints.upload_to`), downloads that
are under way, locks and unfinished files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from minga.core.errors import ConfigurationError
from minga.training.run_folder.host_lock import FILE as HOST_LOCK
from minga.training.state.checkpoints import CheckpointStore

CHECKPOINTS = "checkpoints"
_LEFT_OUT = frozenset({"archive", CHECKPOINTS, "downloads", HOST_LOCK})
MAX_PARTS = 8


def backup_files(folder: Path) -> tuple[int | None, list[Path]]:
    """The step of the newest intact checkpoint, None without one, and the files to keep.

    Raises `StorageError` if there are checkpoints and all of them are damaged.
    """
    newest = CheckpointStore(folder / CHECKPOINTS).load() if (folder / CHECKPOINTS).is_dir() else None
    files = [path for top in sorted(folder.iterdir()) if top.name not in _LEFT_OUT for path in _files(top)]
    if newest is None:
        return None, files
    return newest.snapshot.step, files + sorted(path for path in newest.path.iterdir() if path.is_file())


def safe_name(name: str) -> PurePosixPath:
    """The name of a file in a backup, which must lead into the folder that it is restored to.

    Raises `ConfigurationError`.
    """
    path = PurePosixPath(name)
    parts = name.split("/")
    if path.is_absolute() or "\\" in name or ":" in name or len(parts) > MAX_PARTS or {"", ".", ".."} & {*parts}:
        raise ConfigurationError(f"{name[:80]!r} is no name of a file in a run's folder")
    return path


def _files(top: Path) -> Iterator[Path]:
    if top.name.startswith(".") or top.name.endswith(".part"):
        return
    if top.is_dir() and not top.is_symlink():
        for path in sorted(top.iterdir()):
            yield from _files(path)
    elif top.is_file():
        yield top
