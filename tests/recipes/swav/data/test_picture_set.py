"""Pictures of one size, as they are split and as files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.swav.pictures import PictureSet, digit_pictures, read_pictures
from minga.recipes.swav.preparation import split_pictures
from tests.worlds.swav_world import made_up


def test_digits_of_scikit_learn() -> None:
    found = digit_pictures()
    assert (tuple(found.pictures.shape), found.pictures.dtype) == ((1797, 1, 8, 8), torch.uint8)
    assert int(found.pictures.max()) == 255
    assert sorted(set(found.labels.tolist())) == list(range(10))


def test_no_picture_both_trains_and_is_held_out() -> None:
    found = made_up(200)
    twice = PictureSet(torch.cat([found.pictures] * 2), torch.cat([found.labels] * 2))
    training, heldout = split_pictures(twice, 0.2)
    sides = [{picture.numpy().tobytes() for picture in side.pictures} for side in (training, heldout)]
    assert not sides[0] & sides[1]
    assert len(training) + len(heldout) == 400
    assert 60 < len(heldout) < 100
    everything, nothing = split_pictures(found, 0.0)
    assert (len(everything), len(nothing)) == (200, 0)


def test_files_of_pictures_are_read_back_and_others_refused(tmp_path: Path) -> None:
    found, path = made_up(5, channels=1), tmp_path / "some.safetensors"
    path.write_bytes(found.pack())
    again = read_pictures(path, 1)
    assert torch.equal(again.pictures, found.pictures)
    assert torch.equal(again.labels, found.labels)
    with pytest.raises(ConfigurationError, match="with 3 channels"):
        read_pictures(path, 3)
    path.write_bytes(PictureSet(found.pictures, found.labels - 9).pack())
    with pytest.raises(ConfigurationError, match="labels"):
        read_pictures(path, 1)
    for wrong in (PictureSet(found.pictures.float(), found.labels), PictureSet(found.pictures, found.labels[:2])):
        path.write_bytes(wrong.pack())
        with pytest.raises(ConfigurationError, match="not a file of labelled pictures"):
            read_pictures(path, 1)
    path.write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigurationError, match="not a file of pictures"):
        read_pictures(path, 1)
    with pytest.raises((StorageError, ConfigurationError)):
        read_pictures(tmp_path / "missing", 1)
