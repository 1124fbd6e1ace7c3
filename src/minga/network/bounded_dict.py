"""A dictionary that strangers cannot make grow without end."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """Keeps the `limit` entries that were set last. Set entries by `[]` only."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)  # so that it goes to the end
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]
