"""Pictures with captions that the organiser has: composed of drawings, in a folder, or out of a data set."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from minga.core.errors import ConfigurationError
from minga.recipes.images.content_rank import held_out
from minga.recipes.images.loading import SUFFIXES, Pixels, open_picture, square
from minga.recipes.text_to_image.data.compositions import Composer, Composition, caption_of, draw_compositions
from minga.recipes.text_to_image.data.openmoji import drawings
from minga.recipes.text_to_image.data.rows import caption_of_row, fits, picture_of_row, taken
from minga.recipes.text_to_image.data.sources import rows
from minga.recipes.text_to_image.settings import ImageTextData

METADATA: Final = ("metadata.csv", "metadata.jsonl")
MAX_HELDOUT: Final = 5000


@dataclass(frozen=True)
class PictureSet:
    """Pictures by number: the caption of each, and `picture`, which makes it: uint8 [side, side, 3]."""

    captions: list[str]
    picture: Callable[[int], Pixels]

    def __len__(self) -> int:
        return len(self.captions)

    def some(self, numbers: Any) -> Pixels:
        """Those of the numbers, uint8 [n, side, side, 3]."""
        return np.stack([self.picture(int(number)) for number in numbers])


def picture_sets(data: ImageTextData, side: int, seed: int) -> tuple[PictureSet, PictureSet]:
    """Pictures to train on and those that are held out, `side` pixels wide and high; deterministic.

    Held out is what the picture shows, not its caption: no rendering of a held-out drawing is trained on. Raises
    `ConfigurationError` if there are no pictures, or none on one side.
    """
    if data.source == "openmoji":
        return _composed(data, side, seed)
    if data.source == "folder":
        captions, pictures = _in_folder(data, side)
    else:
        captions, pictures = _streamed(data, side)
    if not pictures:
        raise ConfigurationError("data: there is no picture that passes the filters")
    chosen = held_out([each.tobytes() for each in pictures], data.heldout_fraction)
    parts = []
    for wanted in (False, True):
        numbers = [number for number, is_held_out in enumerate(chosen) if is_held_out == wanted]
        numbers = numbers[:MAX_HELDOUT] if wanted else numbers
        own = [pictures[number] for number in numbers]
        parts.append(PictureSet([captions[number] for number in numbers], own.__getitem__))
    return parts[0], parts[1]


def _composed(data: ImageTextData, side: int, seed: int) -> tuple[PictureSet, PictureSet]:
    found = drawings()
    chosen = held_out([each.pixels.tobytes() for each in found], data.heldout_fraction)
    random = np.random.default_rng(seed)
    apart = round(data.heldout_fraction * data.compositions)
    parts = []
    for wanted, count in ((False, data.compositions - apart), (True, min(apart, MAX_HELDOUT))):
        own = [drawing for drawing, is_held_out in zip(found, chosen, strict=True) if is_held_out == wanted]
        made = draw_compositions(count, len(own), data.colours, random) if own else []
        composer = Composer(own, side)
        captions = [caption_of(own[one.drawing].name, one.colour, one.size, one.place) for one in made]
        parts.append(PictureSet(captions, _painter(composer, made)))
    return parts[0], parts[1]


def _painter(composer: Composer, made: list[Composition]) -> Callable[[int], Pixels]:
    return lambda number: composer.paint(made[number])


def _in_folder(data: ImageTextData, side: int) -> tuple[list[str], list[Pixels]]:
    if not data.files:
        raise ConfigurationError('data.source = "folder" needs files = ["FOLDER"]')
    captions: list[str] = []
    pictures: list[Pixels] = []
    for caption, path in _folder_rows(Path(data.files[0]).expanduser(), data):
        picture = open_picture(path, str(path))
        if fits(picture.width, picture.height, data):
            captions.append(caption)
            pictures.append(square(picture, side))
        if len(pictures) == data.most_pictures:
            break
    return captions, pictures


def _folder_rows(folder: Path, data: ImageTextData) -> Iterator[tuple[str, Path]]:
    """Captions and files, by `metadata.csv` or `metadata.jsonl` with the columns file_name and caption."""
    path = next((folder / name for name in METADATA if (folder / name).is_file()), None)
    if path is None:
        raise ConfigurationError(f"data.files: {folder} has no {' or '.join(METADATA)} (columns file_name, caption)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines: Iterator[Any] = csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
            for row in lines:
                if not isinstance(row, dict) or not isinstance(name := row.get("file_name"), str):
                    raise ConfigurationError(f"{path}: a line has no file_name")
                inside = folder / name
                if ".." in Path(name).parts or Path(name).is_absolute() or inside.suffix.lower() not in SUFFIXES:
                    raise ConfigurationError(f"{path}: {name!r} is no picture in this folder")
                caption = caption_of_row(row, data)
                if caption is not None:
                    yield caption, inside
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path}: cannot be read: {str(error)[:200]}") from error


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
