"""Pictures with captions that the organiser has: composed of drawings, in a folder, or out of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from minga.core.errors import ConfigurationError
from minga.recipes.data.hold_out import held_out
from minga.recipes.images.loading import Pixels, square
from minga.recipes.text_to_image.data.compositions import Composer, Composition, Variety, caption_of, draw_compositions
from minga.recipes.text_to_image.data.folders import folder_pictures
from minga.recipes.text_to_image.data.openmoji import Drawing, drawings
from minga.recipes.text_to_image.data.rows import picture_of_row, rows, taken
from minga.recipes.text_to_image.data.shapes import shape_drawings
from minga.recipes.text_to_image.settings import ImageTextData

MAX_HELDOUT: Final = 5000


@dataclass(frozen=True)
class CaptionedPictures:
    """Pictures by number: the caption of each, and `picture`, which makes it: uint8 [side, side, 3]."""

    captions: list[str]
    picture: Callable[[int], Pixels]

    def __len__(self) -> int:
        return len(self.captions)

    def some(self, numbers: Any) -> Pixels:
        """Those of the numbers, uint8 [n, side, side, 3]."""
        return np.stack([self.picture(int(number)) for number in numbers])


def picture_sets(data: ImageTextData, side: int, seed: int) -> tuple[CaptionedPictures, CaptionedPictures]:
    """Pictures to train on and those that are held out, `side` pixels wide and high; deterministic.

    Held out is what the picture shows, not its caption: no rendering of a held-out drawing is trained on. Raises
    `ConfigurationError` if there are no pictures, or none on one side.
    """
    if data.source == "openmoji":
        return _composed(drawings(), data, side, seed)
    if data.source == "shapes":
        return _shapes(data, side, seed)
    if data.source == "folder":
        captions, pictures = _in_folder(data, side)
    else:
        captions, pictures = _streamed(data, side)
    if not pictures:
        raise ConfigurationError("data: there is no picture that passes the filters")
    return _parted(captions, pictures.__getitem__, [each.tobytes() for each in pictures], data.heldout_fraction)


def _parted(
    captions: Sequence[str], picture: Callable[[int], Pixels], contents: Sequence[bytes], fraction: float
) -> tuple[CaptionedPictures, CaptionedPictures]:
    """The pictures to train on, and those that are held out because of their contents."""
    chosen = np.array(held_out(contents, fraction))
    training, heldout = (np.flatnonzero(chosen == wanted).tolist() for wanted in (False, True))
    return _chosen(captions, picture, training), _chosen(captions, picture, heldout[:MAX_HELDOUT])


def _chosen(captions: Sequence[str], picture: Callable[[int], Pixels], numbers: Sequence[int]) -> CaptionedPictures:
    return CaptionedPictures([captions[number] for number in numbers], lambda place: picture(numbers[place]))


def _composed(
    found: Sequence[Drawing], data: ImageTextData, side: int, seed: int
) -> tuple[CaptionedPictures, CaptionedPictures]:
    chosen = held_out([each.pixels.tobytes() for each in found], data.heldout_fraction)
    random = np.random.default_rng(seed)
    apart = round(data.heldout_fraction * data.compositions)
    parts = []
    for wanted, count in ((False, data.compositions - apart), (True, min(apart, MAX_HELDOUT))):
        own = [drawing for drawing, is_held_out in zip(found, chosen, strict=True) if is_held_out == wanted]
        made = draw_compositions(count, own, Variety(data.colours, data.sizes, data.places), random) if own else []
        composer = Composer(own, side)
        captions = [caption_of(own[one.drawing].name, one.colour, one.size, one.place) for one in made]
        parts.append(CaptionedPictures(captions, _painter(composer, made)))
    return parts[0], parts[1]


def _shapes(data: ImageTextData, side: int, seed: int) -> tuple[CaptionedPictures, CaptionedPictures]:
    """Held out are combinations of shape, colours, size and place: all that a caption says."""
    found, variety = shape_drawings(data.colours), Variety(data.colours, data.sizes, data.places)
    made = draw_compositions(data.compositions, found, variety, np.random.default_rng(seed))
    composer = Composer(found, side)
    captions = [caption_of(found[one.drawing].name, one.colour, one.size, one.place) for one in made]
    contents = [caption.encode() for caption in captions]
    return _parted(captions, _painter(composer, made), contents, data.heldout_fraction)


def _painter(composer: Composer, made: list[Composition]) -> Callable[[int], Pixels]:
    return lambda number: composer.paint(made[number])


def _in_folder(data: ImageTextData, side: int) -> tuple[list[str], list[Pixels]]:
    if not data.files:
        raise ConfigurationError('data.source = "folder" needs files = ["FOLDER"]')
    found = list(islice(folder_pictures(data.files[0], data, side), data.most_pictures))
    return [caption for caption, _ in found], [picture for _, picture in found]


def _streamed(data: ImageTextData, side: int) -> tuple[list[str], list[Pixels]]:
    captions: list[str] = []
    pictures: list[Pixels] = []
    for caption, row in taken(rows(data), data):
        picture = picture_of_row(row, data)
        if picture is not None:
            captions.append(caption)
            pictures.append(square(picture, side))
        if len(pictures) == data.most_pictures:
            break
    return captions, pictures
