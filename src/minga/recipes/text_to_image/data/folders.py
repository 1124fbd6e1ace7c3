"""Folders of pictures with captions, on this machine.

Captions are in `metadata.csv` or `metadata.jsonl`, with the columns file_name and caption; or, where neither is there,
the caption of `NAME.png` is the text of `NAME.txt` beside it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import decode_text, text_encoding
from minga.recipes.images.loading import SUFFIXES, Pixels, open_picture, square
from minga.recipes.text_to_image.data.rows import caption_of_row, fits
from minga.recipes.text_to_image.pairs import CodedRow, Pairs
from minga.recipes.text_to_image.settings import ImageTextData, ImageTextFilters
from minga.recipes.text_to_image.tokens.fsq import FsqTokenizer

METADATA: Final = ("metadata.csv", "metadata.jsonl")
_CAPTION_SUFFIX: Final = ".txt"
_MAX_CAPTION_BYTES: Final = 64 << 10


def folder_pictures(folder: str, data: ImageTextData, side: int) -> Iterator[tuple[str, Pixels]]:
    """The captions and pictures that `data` takes, as squares uint8 [side, side, 3].

    Raises what `captioned_files` raises, and `ConfigurationError` for what is no picture.
    """
    for caption, path in captioned_files(folder, data):
        picture = open_picture(path, str(path))
        if fits(picture.width, picture.height, data):
            yield caption, square(picture, side)


def captioned_files(folder: str, data: ImageTextData) -> Iterator[tuple[str, Path]]:
    """The captions that `data` takes, and the files of their pictures, which are not opened.

    Raises `ConfigurationError` if there is no such folder, nothing says what its pictures show, or a name leads out of
    it.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigurationError(f"{folder}: no such folder")
    metadata = next((place / name for name in METADATA if (place / name).is_file()), None)
    if metadata is not None:
        return _by_metadata(place, metadata, data)
    pictures = [path for path in files_of(folder) if path.suffix.lower() in SUFFIXES]
    captioned = [path for path in pictures if path.with_suffix(_CAPTION_SUFFIX).is_file()]
    if not captioned:
        raise ConfigurationError(
            f"{folder} has no {' or '.join(METADATA)} (columns file_name, {data.caption_column}), and no NAME.txt "
            "beside a picture NAME.png"
        )
    return _by_text_files(captioned, data)


def files_of(folder: str) -> list[Path]:
    """All files in the folder and below, by name: what a run that is prepared from it depends on."""
    return sorted(path for path in Path(folder).expanduser().rglob("*") if path.is_file())


def _by_metadata(folder: Path, path: Path, data: ImageTextData) -> Iterator[tuple[str, Path]]:
    try:
        with path.open(encoding=text_encoding(path), newline="") as file:
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
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise ConfigurationError(f"{path}: cannot be read: {str(error)[:200]}") from error


def _by_text_files(pictures: list[Path], data: ImageTextData) -> Iterator[tuple[str, Path]]:
    for picture in pictures:
        path = picture.with_suffix(_CAPTION_SUFFIX)
        try:
            with path.open("rb") as file:
                text = decode_text(file.read(_MAX_CAPTION_BYTES), "replace")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
        caption = caption_of_row({data.caption_column: text}, data)
        if caption is not None:
            yield caption, picture


# ---- A peer's own pictures with captions, as pairs to train on in the place of the run's.


_AT_A_TIME: Final = 256


def own_rows(
    folders: Sequence[str], filters: ImageTextFilters, side: int, tokenizer: FsqTokenizer, heldout: Pairs | None
) -> list[CodedRow]:
    """Captions and codes of the pictures in `folders`, cut to squares of `side` pixels, by the run's image tokenizer.

    A picture with the codes of one that is held out for all is left out. Raises `ConfigurationError` if nothing is left
    or a picture cannot be read.
    """
    unwanted = set() if heldout is None else {codes.astype("<i8").tobytes() for codes in heldout.codes}
    here = ImageTextFilters(min_caption=filters.min_caption, max_aspect=filters.max_aspect)  # not the run's columns
    data = ImageTextData(source="folder", filters=here)
    pictures = chain.from_iterable(folder_pictures(folder, data, side) for folder in folders)
    found: list[CodedRow] = []
    while some := list(islice(pictures, _AT_A_TIME)):
        codes = tokenizer.encode(np.stack([picture for _, picture in some])).astype(np.int64)
        rows = zip((caption for caption, _ in some), codes, strict=True)
        found += [row for row in rows if row[1].astype("<i8").tobytes() not in unwanted]
    if not found:
        raise ConfigurationError(f"--data {' '.join(folders)}: no picture to train on besides what is held out")
    return found
