"""Curves and lists of bounded length. As a curve grows, its points are merged in pairs, so that it always covers the
whole run; a list keeps the newest. The speed of the swarm is divided among the peers that compute most.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from minga.monitor.history import number_in

Merge = Literal["last", "mean"]

SHOWN = 7
"""Peers with a colour of their own; all others share one."""

TAIL = 8
"""Points at the end of a curve, or entries of a list, that are sent to viewers who have the rest of it."""


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
    """Of each of these fields of a history entry its number; None where it has none, see `number_in`."""
    return {name: number_in(entry, name) for name in names}


class Journal:
    """A list of what happened. It keeps the newest `most` entries; `total` counts all that were ever added."""

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


class SpeedByPeer:
    """Samples per second by peer at some moments, at most `most_points`; then every second moment is dropped.

    Each moment keeps the `SHOWN` fastest peers and the sum of the others, so that memory does not grow with the swarm.
    """

    def __init__(self, most_points: int = 400) -> None:
        self._moments: list[tuple[float, dict[str, float], float]] = []
        self._most = most_points
        self._every = 1
        self._skipped = 0

    def add(self, time_s: float, rates: Mapping[str, Any], others: float) -> None:
        """Add a moment; `rates` may come from a file, and only what is a speed counts."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        good = {
            str(peer): float(rate)
            for peer in list(rates)[: 4 * SHOWN]
            if (rate := number_in(rates, peer)) is not None and rate >= 0
        }
        self._moments.append((time_s, good, others if math.isfinite(others) else 0.0))
        if len(self._moments) > self._most:
            del self._moments[1::2]
            self._every *= 2

    def document(self) -> dict[str, Any]:
        """One list of speeds for each peer shown, one for the others, all as long as `t`. Shown is who was among the
        fastest at most of the moments from its first to its last, those first who were so most often.
        """
        places = defaultdict[str, list[int]](list)
        for place, (_, rates, _) in enumerate(self._moments):
            for peer in rates:
                places[peer].append(place)
        # Who is among the fastest only now and then would be drawn as still in between.
        steady = [peer for peer, its in places.items() if 2 * len(its) > its[-1] - its[0] + 1]
        shown = sorted(steady, key=lambda peer: (-len(places[peer]), peer))[:SHOWN]
        rest = [others + sum(r for p, r in rates.items() if p not in shown) for _, rates, others in self._moments]
        return {
            "t": [round(time_s, 1) for time_s, _, _ in self._moments],
            "peers": [
                {"peer": peer, "rates": [round(rates.get(peer, 0.0), 2) for _, rates, _ in self._moments]}
                for peer in shown
            ],
            "others": [round(value, 2) for value in rest],
        }


def fastest(rates: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The fastest peers of a moment, and the sum of all others."""
    order = sorted((peer for peer in rates if rates[peer] > 0), key=lambda peer: (-rates[peer], peer))
    best = {peer: round(rates[peer], 2) for peer in order[:SHOWN]}
    return best, round(sum(rates[peer] for peer in order[SHOWN:]), 2)
