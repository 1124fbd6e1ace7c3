"""Where the pictures of a run come from: a folder of the organiser, or a data set of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Printable, Real, described, real, whole
from minga.recipes.data.hub import open_hub, rows_of
from minga.recipes.data_source import NAMED, DataSource, Named
from minga.recipes.images.loading import MAX_BYTES

OF_ORGANISER = "the organiser's pictures"


def check_own_folders(folders: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless these are folders, of pictures of a peer."""
    for folder in folders:
        if not Path(folder).expanduser().is_dir():
            raise ConfigurationError(f"--data {folder}: no such folder")


class PictureSource(DataSource):
    """The pictures to learn from; what each recipe makes by itself is a further `source`."""

    source: str = "folder"
    folder: Annotated[Printable, Field(max_length=4096)] = described(
        "",
        "(source folder) a folder here; peers get its pictures or what is made of them, not its path",
        "a path",
        private=True,
    )
    image_column: Named = described("image", "(hub) column that holds the picture", NAMED)
    shuffle_buffer: int = whole(2048, 1, 1 << 20, "(hub) pictures that are put into a new order at once")
    heldout_fraction: Real = real(0.1, 0.0, 0.5, "share of the pictures kept for evaluation")

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        if self.source != "folder" and self.folder:  # the organiser's path is not published: a received spec has none
            raise ValueError('folder is for source = "folder" only')
        return self


def hub_rows(data: PictureSource, *, order: int | None = None) -> Iterator[Mapping[str, Any]]:
    """The rows of the data set, whose pictures are files; `order` puts the parts of which it consists into another one.

    Raises `ConfigurationError` if it cannot be opened, `LocalError` if the stream breaks off again and again.
    """
    return rows_of(open_hub(data.name, data.config, data.split, data.revision), f"data.name = {data.name!r}", order)


def cell(row: Mapping[str, Any], column: str, setting: str) -> Any:
    """What a row has in a column, which a setting named. Raises `ConfigurationError` if there is no such column."""
    if column not in row:
        raise ConfigurationError(f"data.{setting} = {column!r}: there is no such column; there are: {', '.join(row)}")
    return row[column]


def picture_file(row: Mapping[str, Any], column: str) -> bytes:
    """The picture file in a row of a data set. Raises `ConfigurationError` if there is none of a bearable size."""
    found = cell(row, column, "image_column")
    body = found.get("bytes") if isinstance(found, Mapping) else found
    if not isinstance(body, bytes) or len(body) > MAX_BYTES:
        raise ConfigurationError(f"data.image_column = {column!r}: a row has no picture of at most {MAX_BYTES} bytes")
    return body


def files_below(folder: str) -> list[Path]:
    """All files in a folder and below, by name: what a run that is prepared from it depends on."""
    return sorted(path for path in Path(folder).expanduser().rglob("*") if path.is_file()) if folder else []
