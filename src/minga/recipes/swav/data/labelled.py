"""Pictures with classes, of one size, to learn from and to be tested on, for judging a trained model."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch

from minga.core.errors import ConfigurationError
from minga.recipes.images.content_rank import content_rank, held_out
from minga.recipes.images.loading import open_picture, square
from minga.recipes.swav.data.packaged import packaged_pictures
from minga.recipes.swav.data.picture_set import PictureSet
from minga.recipes.swav.data.preparation import MAX_HELDOUT, MAX_PROBE, MAX_SCANNED, is_held_out, split_pictures
from minga.recipes.swav.data.settings import GREY_SOURCES, STREAMED_SOURCES, ImageData
from minga.recipes.swav.data.streamed import EncodedPicture, encoded_pictures

HUB: Final = "hub:"
MAX_BYTES: Final = 1 << 30
_USUAL_FRACTION: Final = 0.1


class LabelledPictures(NamedTuple):
    """Both have classes, and no picture is on both sides."""

    training: PictureSet
    test: PictureSet


def labelled_pictures(source: str, like: ImageData, side: int, examples: int | None) -> LabelledPictures:
    """The pictures of `source`: the name of a package's, a folder with one folder for each class, or
    hub:OWNER/NAME[:CONFIG].

    They have the channels of `like`, the data of a run, and `side` pixels a side, unless they come with a package. A
    picture is on the side on which it is in that run. `examples` takes only so many to learn from.

    Raises `ConfigurationError` if they cannot be read, have no classes, or are too few.
    """
    fraction = like.heldout_fraction or _USUAL_FRACTION
    if source in GREY_SOURCES:
        training, test = split_pictures(packaged_pictures(source), fraction)
    else:
        training, test = _split(_encoded(source), like, side, fraction)
    most = MAX_BYTES // (like.channels * side * side)
    found = LabelledPictures(
        training.first(min(most, MAX_PROBE, examples or MAX_PROBE)), test.first(min(most, MAX_HELDOUT))
    )
    if not all(each.is_labelled for each in found):
        raise ConfigurationError(
            f"{source}: {len(found.training)} pictures to learn from and {len(found.test)} to be tested on; both need "
            "pictures of two classes at least, such as a folder with one folder for each class"
        )
    return LabelledPictures(*(_with_channels(each, like.channels) for each in found))


def _encoded(source: str) -> list[EncodedPicture]:
    if source.startswith(HUB):
        name, _, config = source.removeprefix(HUB).partition(":")
        return list(islice(encoded_pictures(ImageData(source="hub", name=name, config=config)), MAX_SCANNED))
    return list(encoded_pictures(ImageData(source="folder", folder=str(Path(source).expanduser()))))


def _split(
    pictures: list[EncodedPicture], like: ImageData, side: int, fraction: float
) -> tuple[PictureSet, PictureSet]:
    """As `preparation` splits the pictures of a run: by their squares where these travel, else by their files."""
    if like.is_packed:
        return split_pictures(_squares(pictures, like, side), fraction)
    pictures = sorted(pictures, key=lambda picture: content_rank(picture.body))
    if like.source in STREAMED_SOURCES:
        chosen = [is_held_out(picture.body, fraction) for picture in pictures]
    else:
        chosen = held_out([picture.body for picture in pictures], fraction)
    most = MAX_BYTES // (like.channels * side * side)
    sides = [
        [picture for picture, is_out in zip(pictures, chosen, strict=True) if is_out == wanted][:most]
        for wanted in (False, True)
    ]
    return _squares(sides[0][:MAX_PROBE], like, side), _squares(sides[1][:MAX_HELDOUT], like, side)


def _squares(pictures: list[EncodedPicture], like: ImageData, side: int) -> PictureSet:
    if not pictures:
        raise ConfigurationError("there are no pictures, or all of them are on one side")
    opened = (open_picture(picture.body, picture.name) for picture in pictures)
    shown = (picture.convert("L").convert("RGB") if like.channels == 1 else picture for picture in opened)
    squares = np.stack([square(picture, side)[:, :, : like.channels].transpose(2, 0, 1) for picture in shown])
    labels = torch.tensor([picture.label for picture in pictures], dtype=torch.int64)
    return PictureSet(torch.from_numpy(squares), labels)


def _with_channels(found: PictureSet, channels: int) -> PictureSet:
    """Grey pictures for a model that sees colours have three equal channels."""
    same = found.pictures.shape[1] == channels
    return found if same else PictureSet(found.pictures[:, :1].repeat(1, channels, 1, 1), found.labels)
