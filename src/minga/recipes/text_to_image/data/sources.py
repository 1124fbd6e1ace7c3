"""The rows of a data set of the hub, of files on the web and of files here, one after the other."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.recipes.broken_streams import resumed_rows
from minga.recipes.text.sources import open_dataset
from minga.recipes.text_to_image.settings import ImageTextData

_LOADERS: Final = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".tar": "webdataset"}


def rows(data: ImageTextData) -> Iterator[Mapping[str, Any]]:
    """The rows of the source "hub", "shards" or "codes"; pictures stay encoded.

    Raises `ConfigurationError` if the source cannot be opened, `LocalError` if it breaks off again and
    again.
    """
    if data.source == "hub":
        found = open_dataset(data.name, data.config or None, data.split)
    elif data.source == "shards":
        found = _opened(data.urls, "data.urls")
    else:
        found = _opened([str(path) for path in local_files(data)], "data.files")
    return _checked(_undecoded(found, data), data.name or data.source)


def local_files(data: ImageTextData) -> list[Path]:
    """The organiser's files that `files` names, by pattern and name."""
    return [Path(name) for pattern in data.files for name in sorted(glob.glob(pattern)) if Path(name).is_file()]


def _opened(places: Sequence[str], setting: str) -> Any:
    import datasets

    kinds = {_LOADERS.get(Path(place.removesuffix(".gz")).suffix) for place in places}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise ConfigurationError(f"{setting}: must name files of one kind: {', '.join(_LOADERS)}")
    try:
        return datasets.load_dataset(kind, data_files=list(places), split="train", streaming=True)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise ConfigurationError(f"{setting}: cannot be opened: {str(error)[:500]}") from error


def _undecoded(found: Any, data: ImageTextData) -> Any:
    """Pictures as their bytes: what they cost to open is bounded by us."""
    import datasets

    feature = (found.features or {}).get(data.image_column)
    if isinstance(feature, datasets.Image):
        return found.cast_column(data.image_column, datasets.Image(decode=False))
    return found


def _checked(found: Any, name: str) -> Iterator[Mapping[str, Any]]:
    for row in resumed_rows(found, f"data: {name}"):
        if not isinstance(row, Mapping):
            raise ConfigurationError(f"data: {name}: a row has no columns")
        yield row
