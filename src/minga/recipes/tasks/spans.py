"""Entities out of IOB2 tags, and how well predicted ones agree with true ones.

An entity is a B- tag and the I- tags of the same type that follow it. Models also predict I- tags without their B-: as
in CoNLL's evaluation, such a tag begins an entity. An entity counts as found if type, first and last word agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """An entity: its type, its first word and the word after its last one."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class SpanScores:
    """Shares from 0 to 1; `accuracy` is that of the tags. A share of nothing is 0."""

    precision: float
    recall: float
    f1: float
    accuracy: float


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The entities of a sentence, in order."""
    found: list[Span] = []
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, current = tag.partition("-")
        goes_on = prefix == "I" and current == kind != ""
        if kind and not goes_on:
            found.append(Span(kind, start, place))
            kind = ""
        if not goes_on and prefix in ("B", "I"):
            kind, start = current, place
    return found


def score_spans(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> SpanScores:
    """The scores over all sentences, each given as its true and its predicted tags, equally many."""
    true = predicted = both = right = words = 0
    for wanted, given in pairs:
        expected, found = set(spans_of(wanted)), set(spans_of(given))
        true, predicted, both = true + len(expected), predicted + len(found), both + len(expected & found)
        right += sum(a == b for a, b in zip(wanted, given, strict=True))
        words += len(wanted)
    precision, recall = _share(both, predicted), _share(both, true)
    return SpanScores(precision, recall, _share(2 * precision * recall, precision + recall), _share(right, words))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
