"""The sizes of batches of all shapes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.integrations.batch_size import batch_size_of
from minga.integrations.transformers import _samples_in


def zeros(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in shapes]


THREE = torch.zeros(3, 2)
PICTURES = zeros(*((3, 8 + place, 9) for place in range(8)))
BOXES = [{"boxes": torch.zeros(place, 4)} for place in range(2, 10)]
LABELS = torch.zeros(8).long()
QUESTIONS = ["start_positions", "end_positions"]


@pytest.mark.parametrize(
    "batch",
    [
        THREE,
        (torch.tensor(7.0), {"a": THREE}),
        {"name": "text", "nothing": None, "x": THREE},
        UserDict({"x": THREE}),
        ((THREE, torch.zeros(3, 5)), (torch.zeros(3), torch.zeros(3, 1))),
        ({"a": THREE}, {"a": torch.zeros(3, 5)}),
    ],
)
def test_the_size_of_a_batch_is_the_length_of_its_tensors(batch: Any) -> None:
    assert batch_size_of(batch) == _samples_in(batch, []) == 3


UNCLEAR = {
    "nothing": None,
    "texts": ["a", "b"],
    "a scalar": torch.tensor(1.0),
    "patches of pictures": {"words": torch.zeros(3, 5), "patches": torch.zeros(1200, 7)},
    "how classes weigh": ({"x": torch.zeros(3, 5)}, {"y": torch.zeros(3), "class_weights": torch.zeros(10)}),
    "pictures, stacked labels": (PICTURES, LABELS),
    "labels one by one": (tuple(PICTURES), tuple(LABELS), LABELS),
    "pictures and boxes": (tuple(PICTURES), tuple(BOXES)),
    "texts that are not stacked": zeros(*((40 + 7 * place,) for place in range(8))),
}


@pytest.mark.parametrize("batch", UNCLEAR.values(), ids=UNCLEAR)
def test_where_the_tensors_do_not_tell_the_program_has_to(batch: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'weigh=f, unit="samples"'):
        batch_size_of(batch)


@pytest.mark.parametrize(
    ("batch", "names", "size"),
    [
        ({"pixel_values": torch.zeros(1200, 7), "labels": torch.zeros(8, 5)}, ["labels"], 8),
        ({"pixel_values": torch.zeros(8, 3, 9, 9), "labels": BOXES}, ["labels"], 8),
        (UserDict({"input_features": torch.zeros(8, 80, 30), "labels": LABELS}), ["labels"], 8),
        ({"patches": torch.zeros(1200, 7), "start_positions": LABELS, "end_positions": LABELS}, QUESTIONS, 8),
        ({"images": PICTURES, "targets": BOXES}, ["targets"], 8),
        ({"mask_labels": PICTURES, "class_labels": PICTURES, "pixel_values": THREE}, ["mask_labels"], 8),
        ({"labels": torch.tensor(1.0), "x": THREE}, ["labels"], 3),
        ({}, ["labels"], 0),
    ],
)
def test_a_trainer_counts_its_labels(batch: Any, names: list[str], size: int) -> None:
    assert _samples_in(batch, names) == size


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ({"images": PICTURES, "targets": BOXES}, ["labels"]),
        ({"x": torch.zeros(8, 5), "labels": LABELS, "label_weights": torch.zeros(3)}, ["label_weights", "labels"]),
        ((torch.zeros(8, 5), torch.zeros(3)), []),
    ],
)
def test_a_trainer_whose_labels_do_not_tell_has_to_name_them(batch: Any, names: list[str]) -> None:
    """Eight pictures that were not stacked counted as three: the height of the first."""
    with pytest.raises(ConfigurationError, match="label_names="):
        _samples_in(batch, names)
