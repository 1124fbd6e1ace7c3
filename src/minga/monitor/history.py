"""The history of a run as one peer saw it: a file of JSON lines, of bounded size.

    {"t": 1700000000.1, "event": "step", "step": 7, "loss": 8.9, "samples": 512, "total_samples": 3584, …}
    {"t": 1700000003.4, "event": "joined" | "left" | "lost", "peer": "…"}
    {"t": 1700000009.0, "event": "evaluation", "step": 9, "headline": "heldout_loss", "heldout_loss": 8.7, …}

`t` is Unix time. When the file has reached half of its limit it becomes `NAME.1`, replacing the one before, and a new
one is begun. Readers skip lines that they do not understand, such as a last line that was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError, StorageError

FILE_NAME = "history.jsonl"
RECORD_FILE = "dashboard.jsonl"
"""What a dashboard records beside it."""
MAX_BYTES = 64 << 20
MOST_REMEMBERED = 100_000
LATEST_S = 1e11
"""Unix times of entries are below it: the year 5138. A whole number in a file can have thousands of digits."""

Entry = dict[str, Any]


class History:
    """Appends to the history at `path`; None keeps it in memory only.

    `entries` are those of this process, at most the newest `most_remembered`.
    """

    def __init__(
        self, path: Path | None, *, max_bytes: int = MAX_BYTES, most_remembered: int = MOST_REMEMBERED
    ) -> None:
        self.path, self._max_bytes, self._most_remembered = path, max_bytes, most_remembered
        self.entries: list[Entry] = []
        self.listeners: list[Callable[[Entry], None]] = []
        """Told each entry on the thread that adds it."""
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"the folder {path.parent} cannot be made: {error}") from error

    def add(self, time_s: float, event: str, **fields: Any) -> None:
        """Append one entry; `time_s` is Unix time. Raises `StorageError` if the disk refuses."""
        entry = {"t": round(time_s, 3), "event": event, **fields}
        self.entries.append(entry)
        if len(self.entries) > self._most_remembered:
            del self.entries[: len(self.entries) - self._most_remembered // 2]
        for listener in self.listeners:
            listener(entry)
        if self.path is None:
            return
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
                full = file.tell() > self._max_bytes // 2
            if full:
                self.path.replace(_older(self.path))
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error


def read_history(path: Path) -> list[Entry]:
    """All entries in `path` and its older half. Raises `ConfigurationError` if there is nothing to read."""
    lines: list[bytes] = []
    for file in (_older(path), path):
        try:
            if file.stat().st_size > MAX_BYTES:
                raise ConfigurationError(f"{file}: larger than any history ({MAX_BYTES >> 20} MiB)")
            lines += file.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error
    entries = [entry for line in lines if (entry := parse_entry(line)) is not None]
    if not entries:
        raise ConfigurationError(f"{path}: no history of a run; `minga host` keeps one named {FILE_NAME} in its folder")
    return entries


def parse_entry(line: bytes) -> Entry | None:
    """One line of a history; None if it is none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, Mapping) or not isinstance(entry.get("event"), str):
        return None
    time_s = entry.get("t")
    if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not abs(time_s) <= LATEST_S:
        return None
    return dict(entry)


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
