"""Text of several sources, mixed in given proportions, without end, and the same for all who know the seed.

    [[recipe.NAME.data.sources]] ─▶ sources ─▶ filter ─┬─▶ mixed (proportions, blocks) ─▶ training
                                                       └─▶ prepare_mixture (organiser): held out, files that travel

The organiser reads every source; other peers read those of the hub, and the rest out of the files of the run
(`shipped_file`), which hold what passed the filters and is not held out. DeDLOC, section 4.3: sahajBERT mixed Wikipedia
and OSCAR by 0.23 and 0.77.

Documents come in blocks. For each place of a block a source is drawn by the weights, and its next document that passes
the filter is taken: so the weights are shares of documents that are trained on, whatever the filters leave out. A
document that the block has already is left out as well. Then the block is shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from blake3 import blake3

from minga.core.errors import ConfigurationError
from minga.recipes.data.files import file_of
from minga.recipes.data.hold_out import content_rank, held_out
from minga.recipes.data.hub import open_hub
from minga.recipes.data.order import numbered_passes
from minga.recipes.interface import Files
from minga.recipes.text.corpus import pack_documents, unpack_documents
from minga.recipes.text.settings import SourceSettings, TextData
from minga.recipes.text.sources import bible_documents, dataset_documents, file_documents, matching_files
from minga.recipes.text.translations import catalogues, translation_documents
from minga.recipes.text.writing import WRITINGS, as_it_is, script_share

MAX_SHIPPED_CHARACTERS: Final = 200 << 20
MAX_LEFT_OUT: Final = 100_000
"""So many documents of a source in a row may be left out before it is taken for one that has none."""

HUB_SHUFFLE: Final = 1000
"""Documents in the shuffle buffer of a data set: its parts are permuted as well, and the mixture shuffles again."""

HUB_DOCUMENTS: Final = 2000
"""Documents of a data set that the organiser reads for the tokenizer and for what is held out."""


@dataclass(frozen=True)
class MixedSource:
    """`open_pass` gives the documents of a pass by its number, equal ones for equal numbers; `weight` is above 0, and
    `keep` gives None for what is left out.
    """

    open_pass: Callable[[int], Iterator[str]]
    weight: float
    keep: Callable[[str], str | None]


def mixed(sources: Sequence[MixedSource], seed: int, block_size: int) -> Iterator[str]:
    """The documents of `sources`, without end, in blocks of `block_size`.

    Raises `ConfigurationError` if a source, or its filter, gives nothing, and what sources raise.
    """
    if not sources or block_size < 1:
        raise ConfigurationError(f"a mixture of {len(sources)} sources in blocks of {block_size} has no documents")
    shares = np.array([source.weight for source in sources]) / sum(source.weight for source in sources)
    streams = [numbered_passes(source.open_pass, "a source of the mixture has no documents") for source in sources]
    passes = [0] * len(sources)
    for number in count():
        chance, seen, block = np.random.default_rng([seed % 2**63, number]), set[bytes](), list[str]()
        for choice in chance.choice(len(sources), size=block_size, p=shares).tolist():
            begun = passes[choice]
            for now, raw in islice(streams[choice], MAX_LEFT_OUT):
                passes[choice] = now
                if (document := sources[choice].keep(raw)) is None:
                    continue
                digest = blake3(document.encode("utf-8", "surrogatepass")).digest()
                if digest not in seen or now > begun:  # one that was seen counts where there are no others
                    seen.add(digest)
                    block.append(document)
                    break
            else:
                raise ConfigurationError(
                    f"source {choice + 1} of the mixture: of {MAX_LEFT_OUT} documents in a row its filters keep none"
                )
        yield from (block[place] for place in chance.permutation(len(block)).tolist())


class DocumentFilter:
    """The filter of one source; equal settings and texts give equal results on every machine."""

    def __init__(self, source: SourceSettings, language: str) -> None:
        self._source = source
        self._normalize = WRITINGS[language].normalize

    def __call__(self, document: str) -> str | None:
        """The document as it is trained on, or None if it is left out."""
        source, text = self._source, self._normalize(document)
        if not source.min_characters <= len(text) <= source.max_characters or not text.strip():
            return None
        if any(each in text for each in source.drop):
            return None
        if source.script and script_share(text, source.script) < source.script_share:
            return None
        return text


# ---- At a peer that trains.


def mixed_sources(data: TextData, files: Files, seed: int) -> list[MixedSource]:
    """The sources of a mixture at a peer that has the files of the run; what is held out never comes."""
    found = []
    for number, source in enumerate(data.sources):
        if source.source == "hub":
            found.append(MixedSource(_streamed(source, seed + number), source.weight, _not_held_out(source, data)))
        else:
            path = file_of(files, shipped_file(number))
            found.append(MixedSource(_stored(path, seed + number), source.weight, as_it_is))
    return found


def shipped_file(number: int) -> str:
    """The file of a run with the documents of its source `number`, counted from 0."""
    return f"source-{number}.jsonl.gz"


def _stored(path: Path, seed: int) -> Callable[[int], Iterator[str]]:
    documents: list[str] = []

    def open_pass(number: int) -> Iterator[str]:
        if not documents:
            documents.extend(unpack_documents(path))
        order = np.random.default_rng([seed % 2**63, number]).permutation(len(documents))
        return (documents[place] for place in order.tolist())

    return open_pass


def _streamed(source: SourceSettings, seed: int) -> Callable[[int], Iterator[str]]:
    return lambda number: _hub_pass(source, seed + number)


def _hub_pass(source: SourceSettings, order: int | None) -> Iterator[str]:
    dataset = open_hub(source.name, source.config, source.split, source.revision)
    return dataset_documents(dataset, source.text_column, source.name, order=order, shuffle_buffer=HUB_SHUFFLE)


def _not_held_out(source: SourceSettings, data: TextData) -> Callable[[str], str | None]:
    """The filter of a data set at a peer that trains."""
    keep = DocumentFilter(source, data.language)

    def kept(raw: str) -> str | None:
        document = keep(raw)
        return None if document is None or content_rank(document) < data.heldout_fraction else document

    return kept


# ---- What the organiser makes of a mixture: held-out documents, files that travel, and text to train a tokenizer on.


class PreparedMixture(NamedTuple):
    """`training` are documents in the proportions of the mixture, as many as all its sources have (of a data set: some
    of the first). Where peers mix for themselves, `files` hold the training documents of each source that travels, by
    the names of the run's files.
    """

    training: list[str]
    heldout: list[str]
    files: dict[str, bytes]


def prepare_mixture(data: TextData, seed: int) -> PreparedMixture:
    """Read, filter and split the sources. Raises `ConfigurationError` where one has nothing, or too much to travel."""
    shipped = {
        number: prepared_documents(source, data.language)
        for number, source in enumerate(data.sources)
        if source.source != "hub"
    }
    everything = [document for documents in shipped.values() for document in documents]
    is_out = held_out(everything, data.heldout_fraction)
    heldout = {document for document, out in zip(everything, is_out, strict=True) if out}
    training = {number: [each for each in documents if each not in heldout] for number, documents in shipped.items()}
    for number, source in enumerate(data.sources):
        if number not in shipped:
            keep = DocumentFilter(source, data.language)
            kept = filter(None, map(keep, islice(_hub_pass(source, None), 20 * HUB_DOCUMENTS)))
            first = list(islice(kept, HUB_DOCUMENTS))
            heldout |= {each for each in first if content_rank(each) < data.heldout_fraction}
            training[number] = [each for each in first if content_rank(each) >= data.heldout_fraction]
    if empty := [number + 1 for number, documents in training.items() if not documents]:
        raise ConfigurationError(f"source {empty[0]} of the mixture has no document to train on besides the held-out")
    sources = [
        MixedSource(lambda _, own=training[number]: iter(own), source.weight, as_it_is)  # type: ignore[misc]
        for number, source in enumerate(data.sources)
    ]
    return PreparedMixture(
        list(islice(mixed(sources, seed, data.shuffle_buffer), sum(map(len, training.values())))),
        sorted(heldout),
        {shipped_file(number): pack_documents(training[number]) for number in shipped} if data.is_streamed else {},
    )


def prepared_documents(source: SourceSettings, language: str) -> list[str]:
    """The documents of a source that travels, filtered, each once.

    Raises `ConfigurationError` if there are none, or more than can travel with a run.
    """
    keep = DocumentFilter(source, language)
    kept: dict[str, None] = {}
    size = 0
    for raw in _raw_documents(source, language):
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


def local_inputs(source: SourceSettings, language: str) -> list[Path]:
    """The files of this machine that a source reads, those that it finds by itself included."""
    if source.source == "translations":
        return catalogues(source.files, language.partition("-")[0])
    return matching_files(source.files)


def _raw_documents(source: SourceSettings, language: str) -> Iterator[str]:
    """All documents of a source that is no data set, unfiltered, in the order of the source."""
    if source.source == "bible":
        return bible_documents()
    if source.source == "translations":
        return translation_documents(source.files, language.partition("-")[0])
    return file_documents(source.files, source.text_column)
