"""Entities out of tags, and their scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minga.recipes.tasks.evaluate import Entity, SpanScores, score_spans, spans_of

DATA = Path(__file__).parents[2] / "data"


def test_an_entity_is_a_beginning_and_what_follows_of_its_type() -> None:
    assert spans_of(["B-a", "I-a", "O", "B-b", "B-b", "I-b"]) == [
        Entity("a", 0, 2),
        Entity("b", 3, 4),
        Entity("b", 4, 6),
    ]
    assert spans_of([]) == []
    assert spans_of(["O", "O"]) == []


def test_an_inside_tag_without_its_beginning_begins_an_entity() -> None:
    assert spans_of(["I-a", "I-a", "O", "I-b"]) == [Entity("a", 0, 2), Entity("b", 3, 4)]
    assert spans_of(["B-a", "I-b", "I-b"]) == [Entity("a", 0, 1), Entity("b", 1, 3)]


def test_nothing_found_of_nothing_is_zero() -> None:
    assert score_spans([(["O", "O"], ["O", "O"])]) == SpanScores(0.0, 0.0, 0.0, 1.0)


def test_scores_are_those_of_seqeval() -> None:
    """The figures were made by seqeval 1.2.2 (MIT) on random tags."""
    for group in json.loads((DATA / "seqeval_scores.json").read_text()):
        scores = score_spans(zip(group["true"], group["predicted"], strict=True))
        found = [scores.precision, scores.recall, scores.f1, scores.accuracy]
        assert found == pytest.approx(group["scores"], abs=1e-9)
