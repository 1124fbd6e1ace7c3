"""The history of a run as one peer saw it: a file of JSON lines, of bounded size.

    {"t": 1700000000.1, "event": "step", "step": 7, "loss": 8.9, "samples": 512, "total_samples": 3584, …}
    {"t": 1700000003.4, "event": "joined" | "left" | "lost", "peer": "…"}
    {"t": 1700000009.0, "event": "evaluation", "step": 9, "headline": "heldout_loss", "heldout_loss": 8.7, …}

`t` is Unix time. When the file has reached half of its limit it becomes `NAME.1`, replacing the one before, and a new
one is begun. Readers skip lines that they do not understand, such as a last line that was cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError, StorageError

FILE_NAME = "history.jsonl"
RECORD_FILE = "dashboard.jsonl"
"""What a dashboard records beside it."""
MAX_BYTES = 64 << 20
MOST_REMEMBERED = 100_000
LAST_BYTES = 1 << 20
"""So much of the end of a file is read to find its last step."""
LARGEST_NUMBER = 1 << 53
"""Numbers beyond it are none of a run's, and JavaScript cannot tell one from the next."""

Entry = dict[str, Any]


class History:
    """Appends to the history at `path`; None keeps it in memory only.

    `entries` are those of this process, at most the newest `most_remembered`: 100,000 steps take 48 MB, and a
    process that draws nothing needs none.
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
        self.put({"t": round(time_s, 3), "event": event, **fields})

    def put(self, entry: Entry) -> None:
        """Append an entry that is there already, such as one that another peer told. Raises as `add` does."""
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


def samples_in(path: Path) -> tuple[int, int] | None:
    """The step and the count of samples with which the history in `path` ends; None if it tells of none."""
    for file in (path, _older(path)):
        with contextlib.suppress(OSError), file.open("rb") as lines:
            lines.seek(max(0, lines.seek(0, os.SEEK_END) - LAST_BYTES))
            for line in reversed(lines.read().split(b"\n")):
                if (entry := parse_entry(line)) is not None and (known := samples_of(entry)) is not None:
                    return known
    return None


def samples_of(entry: Entry) -> tuple[int, int] | None:
    """The step of an entry, and the samples of all steps up to it; None if it tells of none."""
    step, total = number_in(entry, "step"), number_in(entry, "total_samples")
    if entry["event"] != "step" or step is None or total is None or step < 0 or total < 0:
        return None
    return int(step), int(total)


def parse_entry(line: bytes) -> Entry | None:
    """One line of a history; None if it is none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, Mapping) or not isinstance(entry.get("event"), str):
        return None
    return None if number_in(entry, "t") is None else dict(entry)


def number_in(fields: Mapping[str, Any], name: str) -> float | None:
    """The field `name`, if it is a number; entries may come from a file that was changed, or from another peer.

    None also for what is not finite, or beyond `LARGEST_NUMBER` either way.
    """
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else None


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
