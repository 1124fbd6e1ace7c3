"""Picture files of a folder, of a data set of the Hugging Face hub, or of WebDataset's tar files, one after the other.

All are opened by `datasets`, streamed, with pictures left undecoded: nothing is copied or downloaded as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError
from minga.recipes.broken_streams import in_order_of, resumed_rows
from minga.recipes.hub_data import check_on_hub
from minga.recipes.images.loading import MAX_BYTES
from minga.recipes.swav.data.picture_set import UNLABELLED
from minga.recipes.swav.data.settings import ImageData


@dataclass(frozen=True)
class EncodedPicture:
    """A picture file, its class, -1 for none, and what error messages call it."""

    body: bytes
    label: int
    name: str = "a picture"


def encoded_pictures(data: ImageData, *, order: int | None = None) -> Iterator[EncodedPicture]:
    """The pictures of a source; `order` puts the parts of which it consists into another order.

    Raises `ConfigurationError` if it cannot be opened or has no pictures there, `LocalError` if the stream breaks off
    again and again.
    """
    rows = _opened(data)
    if order is not None:
        rows = in_order_of(order, rows)
    column, names = _column(data), dict[str, int]()
    for row in resumed_rows(rows, f"data.source = {data.source!r}"):
        yield EncodedPicture(_body(row, column, data), _label(row.get(data.label_column), names), _name(row, column))


def _opened(data: ImageData) -> Any:
    import datasets

    known: dict[str, dict[str, Any]] = {
        "folder": {"path": "imagefolder", "data_dir": data.folder, "split": "train"},
        "shards": {"path": "webdataset", "data_files": {"train": list(data.urls)}, "split": "train"},
        "hub": {"path": data.name, "name": data.config or None, "revision": data.revision or None, "split": data.split},
    }
    if data.source == "folder" and not (data.folder and Path(data.folder).is_dir()):
        raise ConfigurationError(f"data.folder = {data.folder!r}: no such folder")
    if data.source == "hub":
        check_on_hub(data.name, "data.name")
    try:
        rows = datasets.load_dataset(**known[data.source], streaming=True)
        column = _column(data)
        if column not in (rows.column_names or []):
            shown = ", ".join(rows.column_names or ["none"])
            raise ConfigurationError(f"data.image_column = {column!r}: there is no such column; there are: {shown}")
        return rows.cast_column(column, datasets.Image(decode=False))
    except (OSError, ValueError, RuntimeError, TypeError, datasets.exceptions.DatasetsError) as error:
        hint = ""
        if "script" in str(error):
            hint = '; where a data set has a loading script, try revision = "refs/convert/parquet"'
        why = str(error)[:500]
        raise ConfigurationError(f"data.source = {data.source!r}: cannot be opened: {why}{hint}") from error


def _column(data: ImageData) -> str:
    return "image" if data.source == "folder" else data.image_column


def _body(row: dict[str, Any], column: str, data: ImageData) -> bytes:
    cell = row.get(column)
    body = cell.get("bytes") if isinstance(cell, dict) else None
    path = cell.get("path") if isinstance(cell, dict) else None
    if body is None and isinstance(path, str) and data.source == "folder":
        try:
            with open(path, "rb") as file:
                body = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(body, bytes) or len(body) > MAX_BYTES:
        raise ConfigurationError(f"data.image_column = {column!r}: a row has no picture of at most {MAX_BYTES} bytes")
    return body


def _name(row: dict[str, Any], column: str) -> str:
    cell = row.get(column)
    path = cell.get("path") if isinstance(cell, dict) else None
    return repr(path[-200:]) if isinstance(path, str) and path else "a picture"


def _label(value: object, names: dict[str, int]) -> int:
    """The number of a class; classes with names are numbered as they come."""
    if isinstance(value, bool) or value is None:
        return UNLABELLED
    if isinstance(value, int):
        return value if 0 <= value < 1 << 20 else UNLABELLED
    return names.setdefault(value, len(names)) if isinstance(value, str) else UNLABELLED
