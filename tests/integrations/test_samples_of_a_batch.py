"""The sizes of batches of all shapes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from minga.integrations import batch_size
from minga.integrations.batch_size import batch_size_of


def zeros(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in shapes]


THREE = torch.zeros(3, 2)
WORDS, LENGTHS = torch.zeros(8, 5), torch.zeros(8)
LABELS = LENGTHS.long()
PICTURES = zeros(*((3, 8 + place, 9) for place in range(8)))
ALIKE = zeros(*[(3, 8, 9)] * 8)
SOUNDS = zeros(*((1, 100 + place) for place in range(8)))
TEXTS = zeros(*((40 + 7 * place,) for place in range(8)))
BOXES = [{"boxes": torch.zeros(place, 4)} for place in range(2, 10)]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (THREE, 3),
        ([THREE, torch.zeros(4)], 3),
        ((torch.tensor(7.0), {"a": THREE}), 3),
        ({"name": "text", "nothing": None, "x": THREE}, 3),
        (UserDict({"x": THREE}), 3),
        ((torch.zeros(0, 2), THREE), 3),
        (iter([THREE]), 3),
        (torch.tensor(1.0), 0),
        (["a", "b"], 0),
        ({}, 0),
        (None, 0),
        (7, 0),
    ],
)
def test_the_size_of_a_batch_is_the_length_of_its_first_tensor(batch: Any, size: int) -> None:
    assert batch_size_of(batch) == size


STACKED = {
    "two inputs and two targets": ((THREE, torch.zeros(3, 5)), (torch.zeros(3), torch.zeros(3, 1))),
    "the same, all of one rank": ((THREE, torch.zeros(3, 5)), zeros((3, 1), (3, 4))),
    "pairs of texts": ({"a": THREE}, {"a": torch.zeros(3, 5)}),
    "texts with five others for each": ({"a": THREE}, {"a": torch.zeros(15, 5)}),
    "inputs in a list, and how classes weigh": (zeros((3, 4), (3, 7)), torch.zeros(2), torch.zeros(3)),
    "sounds and targets one after the other": (
        (torch.zeros(3, 900), torch.zeros(3)),
        (torch.zeros(61), torch.zeros(3)),
    ),
    "patches of pictures": ({"words": torch.zeros(3, 5), "patches": torch.zeros(1200, 7)}, {"labels": THREE}),
    "how classes weigh": ({"x": torch.zeros(3, 5)}, {"y": torch.zeros(3), "class_weights": torch.zeros(10)}),
    "pairs with others": ((THREE, torch.zeros(3)), (THREE, torch.zeros(3)), (torch.zeros(16, 2), torch.zeros(16))),
    "words and masks with others": (zeros((3, 4), (3, 4)), zeros((3, 5), (3, 5)), zeros((16, 6), (16, 6))),
}


@pytest.mark.parametrize("batch", STACKED.values(), ids=STACKED)
def test_parts_of_stacked_batches_are_not_taken_for_samples(batch: Any) -> None:
    assert batch_size_of(batch) == 3


LISTED = {
    "pictures, stacked labels": (PICTURES, LABELS),
    "pictures of equal sizes by chance": (ALIKE, LABELS),
    "one picture": (PICTURES[:1], LABELS[:1]),
    "sounds, stacked labels": (SOUNDS, LABELS),
    "texts, stacked labels": (TEXTS, LABELS),
    "the longest first": (TEXTS[::-1], LABELS),
    "in a mapping": {"images": PICTURES, "labels": LABELS},
    "labels one by one": (tuple(PICTURES), tuple(LABELS)),
    "labels as numbers": [PICTURES, [0] * 8],
    "pictures and boxes": (tuple(PICTURES), tuple(BOXES)),
    "a picture and boxes": (tuple(PICTURES[:1]), tuple(BOXES[:1])),
    "pictures and masks": (PICTURES, [each[:1] for each in PICTURES]),
    "texts and texts": (TEXTS, TEXTS[::-1]),
}


@pytest.mark.parametrize("batch", LISTED.values(), ids=LISTED)
def test_samples_that_are_not_stacked_are_counted(batch: Any) -> None:
    parts = list(batch.values() if isinstance(batch, dict) else batch)
    assert batch_size_of(batch) == len(parts[0])


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (PICTURES, 3),
        (TEXTS, 40),
        ((PICTURES, zeros(*((3, 32 + place, 9) for place in range(8)))), 3),
        (list(zip(PICTURES, BOXES, strict=True)), 3),
        ([{"picture": picture, **boxes} for picture, boxes in zip(PICTURES, BOXES, strict=True)], 3),
    ],
    ids=["pictures", "texts", "pictures in two resolutions", "pairs", "mappings"],
)
def test_where_the_tensors_do_not_tell_the_first_counts_and_a_warning_says_so(
    batch: Any, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    batch_size._warn.cache_clear()
    patches = {"words": WORDS, "patches": torch.zeros(99, 5)}
    quiet = (THREE, (WORDS, LABELS), (WORDS, torch.zeros(8, 3)), patches)
    assert [batch_size_of(each) for each in quiet] == [3, 8, 8, 8]
    assert not caplog.records
    assert [batch_size_of(batch) for _ in range(2)] == [size, size]
    assert len(caplog.records) == 1
    assert "weigh=" in caplog.text
