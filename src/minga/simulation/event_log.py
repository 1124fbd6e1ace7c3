"""The event log of a simulation: JSON lines that are the same for equal seeds.

The first line names the scenario, the last one the digest of all lines in between, each of which is one entry: `t`
(virtual seconds), `kind`, and fields. Keys are sorted and numbers rounded to a microsecond, so that equal entries have
equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from blake3 import blake3

from minga.core.errors import ConfigurationError, StorageError, reason_of

FORMAT: Final = 1
DIGITS: Final = 6
MAX_LINE: Final = 1 << 20
MAX_DIGITS: Final = 20
"""Of a whole number in a log."""

Entry = dict[str, Any]


class LogWriter:
    """Counts and hashes entries, and writes them to a file if there is one. Use it as a context manager."""

    def __init__(self, head: Mapping[str, Any], path: Path | None = None) -> None:
        self._hash = blake3()
        self._path = path
        self._file: TextIO | None = None
        self.entries = 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("w", encoding="utf-8", newline="\n")
            except FileExistsError as error:
                raise StorageError(f"{path}: cannot be written: {path.parent} is no folder") from error
            except OSError as error:
                raise StorageError(f"{path}: cannot be written: {reason_of(error)}") from error
        self._write(_line(_fixed({"minga_log": FORMAT, **head})))

    @property
    def digest(self) -> str:
        """64 hexadecimal digits: BLAKE3 of all entries so far."""
        digest: str = self._hash.hexdigest()
        return digest

    def add(self, entry: Entry) -> Entry:
        """Write one entry, and return it as a reader of the log will find it."""
        fixed = _fixed(entry)
        line = _line(fixed)
        self._hash.update(line.encode())
        self.entries += 1
        self._write(line)
        return dict(fixed)

    def close(self) -> None:
        """Write the last line; may be called twice."""
        if self._file is not None:
            self._write(_line({"log_digest": self.digest, "entries": self.entries}))
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                raise StorageError(f"{self._path}: cannot be written: {reason_of(error)}") from error

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: str) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                raise StorageError(f"{self._path}: cannot be written: {reason_of(error)}") from error


class Log:
    """A log that was written before: its head, and its entries one by one.

    Raises `ConfigurationError` for files that are no logs, and `check` for those whose entries were changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.is_file() and not path.is_dir() and path.exists():
                raise ConfigurationError(f"{path}: not a regular file; it is read twice, so write the log into one")
            with path.open(encoding="utf-8") as file:
                self.head = self._parse(file.readline(MAX_LINE), 1)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
        if self.head.get("minga_log") != FORMAT:
            raise ConfigurationError(
                f"{path}: line 1: not the log of a simulation; `minga sim … --log FILE` writes one"
            )
        self.is_complete = False
        """Whether the last line was there and its digest right; known once all entries were read."""

    def __iter__(self) -> Iterator[Entry]:
        hashed = blake3()
        self.is_complete = False
        with self._path.open(encoding="utf-8", newline="\n") as file:
            file.readline(MAX_LINE)
            number = 1
            while line := file.readline(MAX_LINE):
                number += 1
                if not line.endswith("\n") and len(line) < MAX_LINE:
                    return  # its writer was stopped in the middle of a line
                entry = self._parse(line, number)
                if "log_digest" in entry:
                    self.is_complete = entry["log_digest"] == hashed.hexdigest() and not file.readline(MAX_LINE)
                    return
                if not isinstance(entry.get("t"), int | float) or not isinstance(entry.get("kind"), str):
                    raise ConfigurationError(f"{self._path}: line {number}: an entry needs `t` and `kind`")
                hashed.update(line.encode())
                yield entry

    def _parse(self, line: str, number: int) -> Entry:
        try:
            value = json.loads(line, parse_int=_whole, parse_float=_real, parse_constant=_real)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{self._path}: line {number}: not JSON: {str(error)[:100]}") from error
        if not isinstance(value, dict):
            raise ConfigurationError(f"{self._path}: line {number}: not an object")
        return value


def _whole(digits: str) -> int:
    """A whole number that arithmetic with real ones can take."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; there may be {MAX_DIGITS}")
    return int(digits)


def _real(text: str) -> float:
    """A finite number."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, ensure_ascii=False) + "\n"


def _fixed(value: Any) -> Any:
    """The value with its numbers in their one form."""
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0
    if isinstance(value, list | tuple):
        return [_fixed(item) for item in value]
    if isinstance(value, dict):
        return {key: _fixed(item) for key, item in value.items()}
    return value
