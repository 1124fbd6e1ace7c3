"""A curve of bounded length: as it grows, its points are merged in pairs, so that it always covers the whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

Merge = Literal["last", "mean"]

LARGEST = 1 << 63
"""Larger numbers in a history are none: it may be another peer's, and have whole numbers of thousands of digits."""
TAIL = 8
"""Points at the end of a curve that are sent to viewers who have the rest of it."""


class Series:
    """Columns of equal length. `columns` names each, and how the values of merged points become one.

    A point that is not complete yet, because its bucket takes more raw points, is shown as the last one. `epoch` counts
    the mergers: a viewer that has points of an earlier epoch has to fetch the curve again.
    """

    def __init__(self, columns: Mapping[str, Merge], *, most_points: int = 1200) -> None:
        self._merge = dict(columns)
        self._values: dict[str, list[float | None]] = {name: [] for name in columns}
        self._most = max(4, most_points)
        self._bucket = 1
        self._in_last = 0
        self.epoch = 0

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    def add(self, **values: float | None) -> None:
        """Add a raw point; what is missing or not finite is None."""
        merges = self._in_last and self._in_last < self._bucket
        for name, column in self._values.items():
            value = _finite(values.get(name))
            if merges:
                column[-1] = _merged(self._merge[name], column[-1], self._in_last, value, 1)
            else:
                column.append(value)
        self._in_last = self._in_last + 1 if merges else 1
        if len(self) > self._most:
            self._halve()

    def last(self, name: str) -> float | None:
        """The newest value of a column; None if there is none."""
        column = self._values[name]
        return column[-1] if column else None

    def document(self, *, tail: bool = False) -> dict[str, Any]:
        """The curve as JSON values: all of it, or its last points, `from` being the number of the first one."""
        begin = max(0, len(self) - TAIL) if tail else 0
        columns = {name: [_short(value) for value in column[begin:]] for name, column in self._values.items()}
        return {"epoch": self.epoch, "from": begin, "columns": columns}

    def _halve(self) -> None:
        """Merge neighbours in pairs. The last point may hold fewer raw points than the others."""
        ends, is_paired = len(self) - 1, len(self) % 2 == 0
        for name, column in self._values.items():
            how = self._merge[name]
            self._values[name] = [
                _merged(
                    how, column[at], self._bucket, column[at + 1], self._in_last if at + 1 == ends else self._bucket
                )
                if at < ends
                else column[at]
                for at in range(0, len(column), 2)
            ]
        self._in_last += self._bucket if is_paired else 0
        self._bucket *= 2
        self.epoch += 1


def _merged(how: Merge, old: float | None, old_weight: int, new: float | None, new_weight: int) -> float | None:
    if new is None or old is None:
        return old if new is None else new
    return new if how == "last" else (old * old_weight + new * new_weight) / (old_weight + new_weight)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _short(value: float | None) -> float | None:
    """Six digits, and times to a tenth of a second: what a page can show."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 1) if abs(value) >= 1e5 else float(f"{value:.6g}")


def numbers(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, float | None]:
    """The fields of a history entry that are numbers, which other programs may have written."""
    found: dict[str, float | None] = {}
    for name in names:
        value = entry.get(name)
        found[name] = value if is_number(value) else None
    return found


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a history entry is a number that is finite, and no larger than any that means something."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
