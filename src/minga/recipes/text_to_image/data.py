"""Captions with pictures, or with codes of pictures.

    shapes ─┐
    folder ─┼─▶ picture_sets: to train on, held out ─▶ tokens ─▶ pairs, which travel with the run
    hub ────┴─▶ coded_rows, of a data set that has codes: each peer streams them by itself

A folder has its captions in `metadata.csv` or `metadata.jsonl`, with the columns file_name and caption; where neither
is there, the caption of `NAME.png` is the text of `NAME.txt` beside it.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import decode_text, text_encoding
from minga.recipes.data.hold_out import content_rank, parted
from minga.recipes.images.loading import SUFFIXES, Pixels, open_picture, square
from minga.recipes.images.source import cell, files_below, hub_rows, picture_file
from minga.recipes.text.sources import jsonl_rows, written
from minga.recipes.text_to_image.pairs import CodedRow, Ids, Pairs
from minga.recipes.text_to_image.settings import ImageTextData, ImageTextFilters
from minga.recipes.text_to_image.shapes import draw_compositions, paint
from minga.recipes.text_to_image.tokens import FsqTokenizer, Pictures

MAX_HELDOUT: Final = 5000
_METADATA: Final = ("metadata.csv", "metadata.jsonl")
_CAPTION_SUFFIX: Final = ".txt"
_MAX_CAPTION_BYTES: Final = 64 << 10
_AT_A_TIME: Final = 256

logger = logging.getLogger("minga.recipes")


# ---- What is taken: by its caption, and by the shape of its picture.


def caption_of_row(row: Mapping[str, Any], data: ImageTextData) -> str | None:
    """The caption of a row, None if the row is not taken: by length of caption, shape of picture, `require`.

    A row without a caption, with sizes of 0 or with a size missing is not taken, either. Raises `ConfigurationError`
    if there is no such column.
    """
    text = cell(row, data.caption_column, "caption_column")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"data.caption_column = {data.caption_column!r}: there is no text, but {type(text)}")
    caption = " ".join(written(text).split())
    if len(caption) < data.filters.min_caption:
        return None
    for rule in data.filters.require:
        name, _, wanted = rule.partition("=")
        if str(cell(row, name, "filters.require")) != wanted:
            return None
    if data.width_column and data.height_column:
        width = cell(row, data.width_column, "width_column")
        if not _fits(width, cell(row, data.height_column, "height_column"), data):
            return None
    return caption


def _fits(width: Any, height: Any, data: ImageTextData) -> bool:
    """Whether a picture of that size is taken."""
    if not isinstance(width, int | float) or not isinstance(height, int | float) or not (width > 0 and height > 0):
        return False
    return max(width, height) <= data.filters.max_aspect * min(width, height)


# ---- Pictures that the organiser has.


@dataclass(frozen=True)
class CaptionedPictures:
    """Pictures by number: the caption of each, and `picture`, which makes it: uint8 [side, side, 3]."""

    captions: list[str]
    picture: Callable[[int], Pixels]

    def __len__(self) -> int:
        return len(self.captions)

    def some(self, numbers: Any) -> Pictures:
        """Those of the numbers, uint8 [n, side, side, 3]."""
        return np.stack([self.picture(int(number)) for number in numbers])


def picture_sets(data: ImageTextData, side: int, seed: int) -> tuple[CaptionedPictures, CaptionedPictures]:
    """Pictures to train on and those that are held out, `side` pixels wide and high; deterministic.

    Pictures are held out by what they show; of shapes, that is all that a caption says. Raises `ConfigurationError` if
    there are no pictures, or none on one side.
    """
    if data.source == "shapes":
        random = np.random.default_rng(seed)
        variety = {"colours": data.colours, "sizes": data.sizes, "places": data.places}
        made = draw_compositions(data.compositions, random, **variety)
        captions = [one.caption for one in made]
        return _split(captions, lambda number: paint(made[number], side), captions, data.heldout_fraction)
    if data.source == "folder" and not data.folder:
        raise ConfigurationError('data.source = "folder" needs folder = "FOLDER"')
    found = folder_pictures(data.folder, data, side) if data.source == "folder" else _hub_pictures(data, side)
    taken = list(_taken(found, data.most_pictures))
    if not taken:
        raise ConfigurationError("data: there is no picture that passes the filters")
    pictures = [picture for _, picture in taken]
    contents = [picture.tobytes() for picture in pictures]
    return _split([caption for caption, _ in taken], pictures.__getitem__, contents, data.heldout_fraction)


def _split(
    captions: Sequence[str], picture: Callable[[int], Pixels], contents: Sequence[bytes | str], fraction: float
) -> tuple[CaptionedPictures, CaptionedPictures]:
    training, heldout = parted(range(len(captions)), contents, fraction)
    heldout.sort(key=lambda number: content_rank(contents[number]))  # figures are made with the first ones

    def chosen(numbers: Sequence[int]) -> CaptionedPictures:
        return CaptionedPictures([captions[number] for number in numbers], lambda place: picture(numbers[place]))

    return chosen(training), chosen(heldout[:MAX_HELDOUT])


CaptionedPicture = tuple[str, Pixels]


def _taken(found: Iterable[CaptionedPicture | None], most: int | None = None) -> Iterator[CaptionedPicture]:
    """Those that are not None, at most so many, and none beyond is opened; in the end a warning says that there may be
    others.
    """
    seen = taken = 0
    for each in found:
        seen += 1
        if each is not None:
            taken += 1
            yield each
            if taken == most:
                break
    if taken < seen or taken == most:
        logger.warning(
            "of the first %d pictures %d are taken: data.filters, most_pictures or a missing caption leave out any "
            "others",
            seen,
            taken,
        )


def _hub_pictures(data: ImageTextData, side: int) -> Iterator[CaptionedPicture | None]:
    """As `folder_pictures`."""
    said = f"data.image_column = {data.image_column!r}"
    for row in hub_rows(data):
        caption = caption_of_row(row, data)
        yield None if caption is None else _captioned(caption, picture_file(row, data.image_column), said, data, side)


def folder_pictures(folder: str, data: ImageTextData, side: int) -> Iterator[CaptionedPicture | None]:
    """The captions and pictures of a folder, as squares uint8 [side, side, 3]; None for one that `data` does not take.

    Raises `ConfigurationError` if there is no such folder, nothing says what its pictures show, a name leads out of it,
    or for what is no picture.
    """
    for caption, path in _captioned_files(folder, data):
        yield None if caption is None else _captioned(caption, path, str(path), data, side)


def _captioned(caption: str, file: Any, said: str, data: ImageTextData, side: int) -> CaptionedPicture | None:
    picture = open_picture(file, said)
    return (caption, square(picture, side)) if _fits(picture.width, picture.height, data) else None


def _captioned_files(folder: str, data: ImageTextData) -> Iterator[tuple[str | None, Path]]:
    """The files of a folder, each with its caption, or None if that says that it is not taken."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigurationError(f"{folder}: no such folder")
    metadata = next((place / name for name in _METADATA if (place / name).is_file()), None)
    if metadata is not None:
        return _by_metadata(place, metadata, data)
    pictures = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES]
    if not any(path.with_suffix(_CAPTION_SUFFIX).is_file() for path in pictures):
        raise ConfigurationError(
            f"{folder} has no {' or '.join(_METADATA)} (columns file_name, {data.caption_column}), and no NAME.txt "
            "beside a picture NAME.png"
        )
    return _by_text_files(pictures, data)


def _by_metadata(folder: Path, path: Path, data: ImageTextData) -> Iterator[tuple[str | None, Path]]:
    rows: Iterable[Any] = _csv_rows(path) if path.suffix == ".csv" else (row for _, row in jsonl_rows(path))
    for row in rows:
        if not isinstance(row, dict) or not isinstance(name := row.get("file_name"), str):
            raise ConfigurationError(f"{path}: a line has no file_name")
        inside = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute() or inside.suffix.lower() not in SUFFIXES:
            raise ConfigurationError(f"{path}: {name!r} is no picture in this folder")
        yield caption_of_row(row, data), inside


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding=text_encoding(path), newline="") as file:
            yield from csv.DictReader(file)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path}: cannot be read: {str(error)[:200]}") from error


def _by_text_files(pictures: list[Path], data: ImageTextData) -> Iterator[tuple[str | None, Path]]:
    for picture in pictures:
        path = picture.with_suffix(_CAPTION_SUFFIX)
        try:
            with path.open("rb") as file:
                text = decode_text(file.read(_MAX_CAPTION_BYTES), "replace")
        except FileNotFoundError:
            yield None, picture
            continue
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
        yield caption_of_row({data.caption_column: text}, data), picture


# ---- A data set that has codes in the place of pictures.


def coded_rows(data: ImageTextData, length: int, codes: int, *, order: int | None = None) -> Iterator[CodedRow]:
    """Captions and codes, int64 [length], each below `codes`; held-out ones included. `order` seeds another order."""
    for row in hub_rows(data, order=order):
        if (caption := caption_of_row(row, data)) is not None:
            yield caption, codes_of_row(row, data, length, codes)


def codes_of_row(row: Mapping[str, Any], data: ImageTextData, length: int, codes: int) -> Ids:
    """int64 [length], each below `codes`. Raises `ConfigurationError` for anything else."""
    value = cell(row, data.code_column, "code_column")
    try:
        if isinstance(value, bytes):
            found = np.frombuffer(value, dtype="<i2").astype(np.int64)
        else:
            found = np.asarray(value)
            if found.dtype.kind not in "iu":
                raise ValueError("these are no whole numbers")
            found = found.astype(np.int64).ravel()
        if len(found) != length or found.min() < 0 or found.max() >= codes:
            raise ValueError(f"{len(found)} numbers up to {found.max() if len(found) else 0}")
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"data.code_column = {data.code_column!r}: a picture has {length} codes below {codes}; found {error}"
        ) from error
    return found


def is_held_out(codes: Ids, fraction: float) -> bool:
    """Whether a streamed picture is held out, by its codes."""
    return rank_of_codes(codes) < fraction


def rank_of_codes(codes: Ids) -> float:
    """The rank of a picture by its codes."""
    return content_rank(_content(codes))


def _content(codes: np.ndarray[Any, Any]) -> bytes:
    return codes.astype("<i8").tobytes()


# ---- A peer's own pictures with captions, as pairs to train on in the place of the run's.


def own_rows(
    folders: Sequence[str], filters: ImageTextFilters, side: int, tokenizer: FsqTokenizer, heldout: Pairs | None
) -> list[CodedRow]:
    """Captions and codes of the pictures in `folders`, cut to squares of `side` pixels, by the run's image tokenizer.

    A picture with the codes of one that is held out for all is left out. Raises `ConfigurationError` if nothing is left
    or a picture cannot be read.
    """
    unwanted = set() if heldout is None else set(map(_content, heldout.codes))
    here = ImageTextFilters(min_caption=filters.min_caption, max_aspect=filters.max_aspect)  # not the run's columns
    data = ImageTextData(source="folder", filters=here)
    pictures = _taken(chain.from_iterable(folder_pictures(folder, data, side) for folder in folders))
    found: list[CodedRow] = []
    while some := list(islice(pictures, _AT_A_TIME)):
        codes = tokenizer.encode(np.stack([picture for _, picture in some])).astype(np.int64)
        rows = zip((caption for caption, _ in some), codes, strict=True)
        found += [row for row in rows if _content(row[1]) not in unwanted]
    if not found:
        raise ConfigurationError(f"--data {' '.join(folders)}: no picture to train on besides what is held out")
    return found
