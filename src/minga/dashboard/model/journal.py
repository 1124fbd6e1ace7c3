"""A list of what happened, of bounded length, of which viewers are sent what is new."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

TAIL: Final = 8
"""Entries at the end that are sent to viewers who have the rest."""


class Journal:
    """Keeps the newest `most` entries; `total` counts all that were ever added."""

    def __init__(self, most: int = 200) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=most)
        self.total = 0

    def add(self, entry: dict[str, Any]) -> None:
        """Append one entry."""
        self._kept.append(entry)
        self.total += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def document(self, *, tail: bool = False) -> dict[str, Any]:
        """The entries kept, or the last of them, oldest first, and how many there were in all."""
        kept = list(self._kept)
        return {"total": self.total, "entries": kept[-TAIL:] if tail else kept}
