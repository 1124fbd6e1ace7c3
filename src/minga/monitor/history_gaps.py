"""What another history adds to one's own: the times in which this one has nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minga.monitor.history import Entry

LONGEST_SILENCE_S: Final = 120.0
"""Entries of one process lie no further apart while it watches a run whose swarm it records."""


def fill_gaps(own: Sequence[Entry], other: Sequence[Entry]) -> list[Entry]:
    """`own` and those entries of `other` that lie in no time of which `own` tells, in order of time."""
    spans = _spans(sorted(float(entry["t"]) for entry in own))
    added, place = [], 0
    for entry in sorted(other, key=lambda entry: float(entry["t"])):
        while place < len(spans) and spans[place][1] < entry["t"]:
            place += 1
        if place == len(spans) or entry["t"] < spans[place][0]:
            added.append(entry)
    return sorted([*own, *added], key=lambda entry: float(entry["t"]))


def _spans(times: Sequence[float]) -> list[tuple[float, float]]:
    """First and last moment of each stretch without a long silence."""
    spans: list[tuple[float, float]] = []
    for time_s in times:
        if spans and time_s - spans[-1][1] <= LONGEST_SILENCE_S:
            spans[-1] = spans[-1][0], time_s
        else:
            spans.append((time_s, time_s))
    return spans
