"""Rows of a data set: which are taken, and what of them is caption, picture and codes."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from minga.core.errors import ConfigurationError
from minga.recipes.data.hub import open_files, open_hub, rows_of
from minga.recipes.images.loading import open_picture
from minga.recipes.text.sources import clean
from minga.recipes.text_to_image.settings import ImageTextData


def caption_of_row(row: Mapping[str, Any], data: ImageTextData) -> str | None:
    """The caption of a row, None if the row is not taken: by length of caption, shape of picture, `require`.

    A row without a caption, with sizes of 0 or with a size missing is not taken, either. Raises `ConfigurationError`
    if there is no such column.
    """
    text = _column(row, data.caption_column, "caption_column")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"data.caption_column = {data.caption_column!r}: there is no text, but {type(text)}")
    caption = " ".join(clean(text).split())
    if len(caption) < data.filters.min_caption:
        return None
    for rule in data.filters.require:
        name, _, wanted = rule.partition("=")
        if str(_column(row, name, "filters.require")) != wanted:
            return None
    if data.width_column and data.height_column:
        width = _column(row, data.width_column, "width_column")
        height = _column(row, data.height_column, "height_column")
        if not fits(width, height, data):
            return None
    return caption


def fits(width: Any, height: Any, data: ImageTextData) -> bool:
    """Whether a picture of that size is taken."""
    if not isinstance(width, int | float) or not isinstance(height, int | float) or not (width > 0 and height > 0):
        return False
    return max(width, height) <= data.filters.max_aspect * min(width, height)


def codes_of_row(row: Mapping[str, Any], data: ImageTextData, length: int, codes: int) -> npt.NDArray[np.int64]:
    """int64 [length], each below `codes`. Raises `ConfigurationError` for anything else."""
    value = _column(row, data.code_column, "code_column")
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


def picture_of_row(row: Mapping[str, Any], data: ImageTextData) -> Image.Image | None:
    """The picture, None if its shape is not taken. Raises `ConfigurationError` if there is none that can be read."""
    value = _column(row, data.image_column, "image_column")
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, Image.Image):
        picture = value.convert("RGB")
    elif isinstance(value, bytes):
        picture = open_picture(value, f"data.image_column = {data.image_column!r}")
    else:
        raise ConfigurationError(f"data.image_column = {data.image_column!r}: no picture, but {type(value).__name__}")
    return picture if fits(picture.width, picture.height, data) else None


def taken(rows: Iterator[Mapping[str, Any]], data: ImageTextData) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows that are taken, with their captions."""
    for row in rows:
        caption = caption_of_row(row, data)
        if caption is not None:
            yield caption, row


def _column(row: Mapping[str, Any], name: str, setting: str) -> Any:
    if name not in row:
        raise ConfigurationError(f"data.{setting} = {name!r}: there is no such column; there are: {', '.join(row)}")
    return row[name]


# ---- The rows of a data set of the hub, of files on the web and of files here, one after the other.


def rows(data: ImageTextData) -> Iterator[Mapping[str, Any]]:
    """The rows of the source "hub", "shards" or "codes"; pictures stay encoded.

    Raises `ConfigurationError` if the source cannot be opened, `LocalError` if it breaks off again and again.
    """
    if data.source == "hub":
        found = open_hub(data.name, data.config, data.split)
    elif data.source == "shards":
        found = open_files(data.urls, "data.urls")
    else:
        found = open_files([str(path) for path in local_files(data)], "data.files")
    return rows_of(found, f"data: {data.name or data.source}")


def local_files(data: ImageTextData) -> list[Path]:
    """The organiser's files that `files` names, by pattern and name."""
    return [Path(name) for pattern in data.files for name in sorted(glob.glob(pattern)) if Path(name).is_file()]
