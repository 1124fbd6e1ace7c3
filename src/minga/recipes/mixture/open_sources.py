"""What the settings of a source name, as documents.

The organiser reads every source; other peers read those of the hub, and the rest out of the files of the run
(`shipped_file`), which hold what passed the filters and is not held out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from minga.core.errors import ConfigurationError
from minga.recipes.interface import Files
from minga.recipes.mixture.filters import DocumentFilter
from minga.recipes.mixture.mixed_stream import MixedSource
from minga.recipes.mixture.source_stream import OpenPass
from minga.recipes.mixture.translations import catalogues, translation_documents
from minga.recipes.text.corpus import heldout_rank, unpack_documents
from minga.recipes.text.settings import SourceSettings, TextData
from minga.recipes.text.sources import (
    bible_documents,
    dataset_documents,
    file_documents,
    matching_files,
    open_dataset,
)
from minga.recipes.writing.by_language import as_it_is

MAX_SHIPPED_CHARACTERS = 200 << 20
HUB_SHUFFLE = 1000
"""Documents in the shuffle buffer of a data set: its shards are permuted as well, and the mixture shuffles again."""


def shipped_file(number: int) -> str:
    """The file of a run with the documents of its source `number`, counted from 0."""
    return f"source-{number}.jsonl.gz"


def is_shipped(source: SourceSettings) -> bool:
    """Whether the documents of a source travel with the run."""
    return source.source != "hub"


def raw_documents(source: SourceSettings, language: str) -> Iterator[str]:
    """All documents of a source that is no data set, unfiltered, in the order of the source."""
    if source.source == "bible":
        return bible_documents()
    if source.source == "translations":
        return translation_documents(source.files, language.partition("-")[0])
    return file_documents(source.files, source.text_column)


def local_inputs(source: SourceSettings, language: str) -> list[Path]:
    """The files of this machine that a source reads, those that it finds by itself included."""
    if source.source == "translations":
        return catalogues(source.files, language.partition("-")[0])
    return [path for pattern in source.files for path in matching_files(pattern)]


def prepared_documents(source: SourceSettings, language: str) -> list[str]:
    """The documents of a source that travels, filtered, each once.

    Raises `ConfigurationError` if there are none, or more than can travel with a run.
    """
    keep = DocumentFilter(source, language)
    kept: dict[str, None] = {}
    size = 0
    for raw in raw_documents(source, language):
        document = keep(raw)
        if document is None or document in kept:
            continue
        kept[document] = None
        size += len(document)
        if size > MAX_SHIPPED_CHARACTERS:
            raise ConfigurationError(
                f"a source of the mixture has more than {MAX_SHIPPED_CHARACTERS >> 20} Mi characters, too much to "
                'travel with a run: publish it as a data set and use source = "hub"'
            )
    if not kept:
        raise ConfigurationError(f'the filters keep no document of the source "{source.source}"')
    return list(kept)


def first_of_hub(source: SourceSettings, language: str, count: int) -> list[str]:
    """Filtered documents from the beginning of a data set, at most `count`, out of at most 20 times as many."""
    keep = DocumentFilter(source, language)
    kept = (document for raw in islice(_hub_pass(source, None), 20 * count) if (document := keep(raw)) is not None)
    return list(islice(kept, count))


def mixed_sources(data: TextData, files: Files, seed: int) -> list[MixedSource]:
    """The sources of a mixture at a peer that has the files of the run; what is held out never comes."""
    found = []
    for number, source in enumerate(data.sources):
        if is_shipped(source):
            name = shipped_file(number)
            if name not in files:
                raise ConfigurationError(f"the run came without the file {name}, which its recipe needs")
            found.append(MixedSource(_stored(files[name], seed + number), source.weight, as_it_is))
        else:
            found.append(MixedSource(_streamed(source, seed + number), source.weight, _HubFilter(source, data)))
    return found


def _stored(path: Path, seed: int) -> OpenPass:
    documents: list[str] = []

    def open_pass(number: int) -> Iterator[str]:
        if not documents:
            documents.extend(unpack_documents(path))
        order = np.random.default_rng([seed % 2**63, number]).permutation(len(documents))
        return (documents[place] for place in order.tolist())

    return open_pass


def _streamed(source: SourceSettings, seed: int) -> OpenPass:
    return lambda number: _hub_pass(source, seed + number)


def _hub_pass(source: SourceSettings, order: int | None) -> Iterator[str]:
    dataset = open_dataset(source.name, source.config or None, source.split, source.revision or None)
    return dataset_documents(dataset, source.text_column, source.name, order=order, shuffle_buffer=HUB_SHUFFLE)


class _HubFilter:
    """The filter of a data set at a peer that trains: held-out documents are left out, too."""

    def __init__(self, source: SourceSettings, data: TextData) -> None:
        self._keep, self._heldout_fraction = DocumentFilter(source, data.language), data.heldout_fraction

    def __call__(self, document: str) -> str | None:
        kept = self._keep(document)
        return None if kept is None or heldout_rank(kept) < self._heldout_fraction else kept
