"""That a run is hosted once from its folder on this machine.

The host locks a file there, and leaves its link in it for a second process: that would be another organiser, with
another key and link, which writes into the same folder.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

from minga.core.errors import ConfigurationError, LinkError, StorageError
from minga.identity.keys.file_lock import FileLock
from minga.identity.links.links import Link

FILE = "hosted.link"
MAX_LINK_BYTES = 1 << 12


class HostLock:
    """The right to host from the folder of one run, until `release` or the end of this process."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        self._path, self._lock = path, lock

    @classmethod
    def take(cls, directory: Path) -> HostLock:
        """Raises `ConfigurationError`, with the link of the other host, if another process hosts from there already."""
        path = directory / FILE
        try:
            path.touch()
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
        try:
            lock = FileLock.try_acquire(path)
        except OSError:
            return cls(path, None)  # no locks on this file system: whether another host lives is unknown
        if lock is None:
            link = _read(path)
            way = f"`minga join {link}`" if link else "the link that it printed"
            raise ConfigurationError(
                f"another process on this machine hosts this run already, from {directory}: take part in it by {way}, "
                "or end that process to host in its place"
            )
        claim = cls(path, lock)
        claim._write("")
        return claim

    def tell(self, link: Link) -> None:
        """Leave the link of who hosts; a disk that refuses is no reason not to host."""
        self._write(str(link))

    def release(self) -> None:
        """Let others host; may be called twice."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._path.write_text(text, encoding="ascii")  # no other file must take the place of the one that is locked

    def __enter__(self) -> HostLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read(path: Path) -> Link | None:
    """The link that was left; None if there is none yet."""
    try:
        with path.open("rb") as file:
            return Link.parse(file.read(MAX_LINK_BYTES).decode("ascii"))
    except (OSError, UnicodeDecodeError, LinkError):
        return None
