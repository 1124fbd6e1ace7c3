"""Progress of bytes that arrived sealed, before they can be opened."""

from __future__ import annotations

from collections.abc import Callable


class ReadBuffer:
    """Memory that is being filled; `progress` also counts bytes that cannot be opened yet, `placed` does not.

    A record of 128 KiB is opened when all of it is there, which over a slow link takes seconds.
    """

    def __init__(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None,
        placed: Callable[[int], None] | None = None,
    ) -> None:
        self.rest = target
        self._size, self._progress, self._placed = target.nbytes, progress, placed
        self._came = self._told = 0

    def filled(self, size: int, *, came: int = 0) -> None:
        """Note further decrypted bytes, and the encrypted ones that arrived."""
        self.rest = self.rest[size:]
        if self._placed is not None and size:
            self._placed(size)
        self._came += came
        told = max(self._size - self.rest.nbytes, min(self._came, self._size))
        if self._progress is not None and told > self._told:
            self._progress(told - self._told)
            self._told = told
