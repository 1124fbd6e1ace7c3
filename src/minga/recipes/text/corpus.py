"""The text of a run as its peers get it: of one source, or of several mixed in given proportions; part of it held out.

Where the organiser has the text (the Bible, own files, made-up sentences), all of it travels with the run, so that a
volunteer needs nothing but the link. Of a data set on the Hugging Face hub only the held-out documents travel; each
peer streams the rest itself.

Which documents are held out follows from their texts alone, so equal ones never end up on both sides.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from blake3 import blake3

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.data.files import file_of
from minga.recipes.data.hold_out import by_rank, content_rank, held_out, parted
from minga.recipes.data.hub import open_hub
from minga.recipes.data.order import numbered_passes
from minga.recipes.interface import Files
from minga.recipes.text.settings import SourceSettings, TextData
from minga.recipes.text.sources import bible_documents, dataset_documents, file_documents, sentence_documents
from minga.recipes.text.writing import WRITINGS, as_it_is, script_share

TRAINING_FILE = "training.jsonl.gz"
MAX_TEXT_CHARACTERS = 256 << 20
MAX_DOCUMENTS = 16 << 20
HELDOUT_FILE = "heldout.jsonl.gz"
MAX_STREAMED_HELDOUT = 256
MAX_STREAMED_SCAN = 50_000
MAX_SCAN_CHARACTERS = 16 << 20
_MAX_LINE_BYTES = 16 << 20

logger = logging.getLogger("minga.recipes")


def split_documents(documents: list[str], heldout_fraction: float) -> tuple[list[str], list[str]]:
    """The documents for training and those held out, each in the order given.

    Raises `ConfigurationError` if there is nothing to train on.
    """
    if not documents:
        raise ConfigurationError("data: there is no text")
    return parted(documents, documents, heldout_fraction)


def local_documents(data: TextData) -> list[str]:
    """All documents of a source that the organiser has at hand; "datasets" is none.

    Raises `ConfigurationError` if they exceed what can travel with a run.
    """
    if data.source == "sentences":
        source = sentence_documents(data.language)
    else:
        source = bible_documents() if data.source == "bible" else file_documents(data.files, data.text_column)
    documents, size = [], 0
    for document in map(WRITINGS[data.language].normalize, source):
        documents.append(document)
        size += len(document)
        if size > MAX_TEXT_CHARACTERS:
            raise ConfigurationError(
                f"data.files: more than {MAX_TEXT_CHARACTERS >> 20} Mi characters, too much to travel with a run; "
                'publish the text as a data set and use source = "datasets"'
            )
    return documents


def streamed_documents(data: TextData, *, order: int | None = None) -> Iterator[str]:
    """The documents of a data set, held-out ones included; `order` seeds its shuffle buffer, None leaves its order.

    Raises `LocalError` if it breaks off again and again.
    """
    dataset = open_hub(data.name, data.config, data.split, data.revision)
    return dataset_documents(dataset, data.text_column, data.name, order=order, shuffle_buffer=data.shuffle_buffer)


def first_streamed(data: TextData) -> tuple[list[str], list[str]]:
    """What the organiser needs of a data set: some documents for the tokenizer, and the held-out ones for all.

    Reads until 256 held-out documents were found (with none to hold out: until there is enough for the tokenizer), at
    most 50,000 documents. Raises `ConfigurationError` if there is no text, or none that is to be held out.
    """
    training: list[str] = []
    heldout: list[str] = []
    size = 0
    for document in map(WRITINGS[data.language].normalize, islice(streamed_documents(data), MAX_STREAMED_SCAN)):
        if content_rank(document) < data.heldout_fraction:
            heldout.append(document)
        elif size < MAX_SCAN_CHARACTERS:
            training.append(document)
            size += len(document)
        enough = len(heldout) >= MAX_STREAMED_HELDOUT or data.heldout_fraction <= 0
        if enough and size >= MAX_SCAN_CHARACTERS:
            break
    if not training:
        raise ConfigurationError(f"data.name = {data.name!r}: there is no text to train on")
    if data.heldout_fraction > 0 and not heldout:
        raise ConfigurationError(
            f"data.heldout_fraction = {data.heldout_fraction}: none of the first {len(training)} documents is held "
            "out; raise it, or set it to 0"
        )
    return training, heldout[:MAX_STREAMED_HELDOUT]


def pack_documents(documents: Iterable[str]) -> bytes:
    """Documents as gzip-compressed JSON lines, without time stamps: equal documents give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=True).encode("ascii") + b"\n")
    return buffer.getvalue()


def unpack_documents(path: Path) -> Iterator[str]:
    """The documents of a file that `pack_documents` made; memory stays bounded by the longest line allowed, 16 MiB.

    Raises `ConfigurationError` for anything else, and for more text than may travel, which a small file can hold; and
    `StorageError` if the file cannot be read.
    """
    try:
        with gzip.open(path, "rb") as file:
            number, size = 0, 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                document = json.loads(line)
                if not isinstance(document, str):
                    raise ConfigurationError(f"{path}, line {number}: not a document")
                size += len(document)
                if size > MAX_TEXT_CHARACTERS or number > MAX_DOCUMENTS:
                    raise ConfigurationError(f"{path}: more text than may travel with a run")
                yield document
    except gzip.BadGzipFile as error:
        raise ConfigurationError(f"{path}: not a file of documents: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: not a file of documents: {str(error)[:200]}") from error


# ---- A mixture: text of several sources, without end, and the same for all who know the seed.
#
#     [[recipe.NAME.data.sources]] ─▶ sources ─▶ filter ─┬─▶ mixed (proportions, blocks) ─▶ training
#                                                        └─▶ prepare_mixture (organiser): held out, files that travel
#
# The organiser reads every source; other peers read those of the hub, and the rest out of the files of the run
# (`shipped_file`), which hold what passed the filters and is not held out. DeDLOC, section 4.3: sahajBERT mixed
# Wikipedia and OSCAR by 0.23 and 0.77.
#
# Documents come in blocks. For each place of a block a source is drawn by the weights, and its next document that
# passes the filter is taken: so the weights are shares of documents that are trained on, whatever the filters leave
# out. A document that the block has already is left out as well, until its source has been read to its end and has no
# others: from then on, all of them come again in turn. Then the block is shuffled.


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
        begun = list(passes)
        for choice in chance.choice(len(sources), size=block_size, p=shares).tolist():
            left_out = 0
            for now, raw in streams[choice]:
                passes[choice] = now
                if (document := sources[choice].keep(raw)) is None:
                    left_out += 1
                    if left_out == MAX_LEFT_OUT:
                        raise ConfigurationError(
                            f"source {choice + 1} of the mixture: of {MAX_LEFT_OUT} documents in a row its filters "
                            "keep none"
                        )
                    continue
                digest = blake3(document.encode("utf-8", "surrogatepass")).digest()
                if digest not in seen or now > begun[choice] + 1:  # the block has a whole pass of this source
                    seen.add(digest)
                    block.append(document)
                    break
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
    heldout = frozenset(unpack_documents(files[HELDOUT_FILE])) if HELDOUT_FILE in files else frozenset()
    for number, source in enumerate(data.sources):
        if source.source == "hub":
            keep = _not_held_out(source, data, heldout)
            found.append(MixedSource(_streamed(source, seed + number), source.weight, keep))
        else:
            path = file_of(files, shipped_file(number))
            found.append(MixedSource(_stored(path, seed + number), source.weight, as_it_is))
    return found


def shipped_file(number: int) -> str:
    """The file of a run with the documents of its source `number`, counted from 0."""
    return f"source-{number}.jsonl.gz"


def reordered_passes(documents: Sequence[str], seed: int) -> Callable[[int], Iterator[str]]:
    """Each pass over `documents` in an order of its own: of a source that is not used up, any part may come."""

    def open_pass(number: int) -> Iterator[str]:
        order = np.random.default_rng([seed % 2**63, number]).permutation(len(documents))
        return (documents[place] for place in order.tolist())

    return open_pass


def _stored(path: Path, seed: int) -> Callable[[int], Iterator[str]]:
    documents: list[str] = []
    reordered = reordered_passes(documents, seed)

    def open_pass(number: int) -> Iterator[str]:
        if not documents:
            documents.extend(unpack_documents(path))
        return reordered(number)

    return open_pass


def _streamed(source: SourceSettings, seed: int) -> Callable[[int], Iterator[str]]:
    return lambda number: _hub_pass(source, seed + number)


def _hub_pass(source: SourceSettings, order: int | None) -> Iterator[str]:
    dataset = open_hub(source.name, source.config, source.split, source.revision)
    return dataset_documents(dataset, source.text_column, source.name, order=order, shuffle_buffer=HUB_SHUFFLE)


def _not_held_out(source: SourceSettings, data: TextData, heldout: Collection[str]) -> Callable[[str], str | None]:
    """The filter of a data set at a peer that trains; `heldout` are documents that came with the run, some of which are
    of files, of which others may be held out.
    """
    keep = DocumentFilter(source, data.language)

    def kept(raw: str) -> str | None:
        document = keep(raw)
        if document is None or content_rank(document) < data.heldout_fraction or document in heldout:
            return None
        return document

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
    first = dict[int, list[str]]()
    for number, source in enumerate(data.sources):
        if number not in shipped:
            keep = DocumentFilter(source, data.language)
            kept = filter(None, map(keep, islice(_hub_pass(source, None), 20 * HUB_DOCUMENTS)))
            first[number] = list(islice(kept, HUB_DOCUMENTS))
            heldout |= {each for each in first[number] if content_rank(each) < data.heldout_fraction}
    training = {number: [each for each in some if each not in heldout] for number, some in (shipped | first).items()}
    if empty := [number + 1 for number, documents in training.items() if not documents]:
        raise ConfigurationError(f"source {empty[0]} of the mixture has no document to train on besides the held-out")
    sources = [
        MixedSource(reordered_passes(training[number], seed + number), source.weight, as_it_is)
        for number, source in enumerate(data.sources)
    ]
    total = sum(map(len, training.values()))
    drawn = list(islice(mixed(sources, seed, min(data.shuffle_buffer, total)), total))
    if not data.is_streamed:
        warn_of_rest(list(training.values()), drawn)
    return PreparedMixture(
        drawn,
        by_rank(heldout),
        {shipped_file(number): pack_documents(training[number]) for number in shipped} if data.is_streamed else {},
    )


def warn_of_rest(sources: Sequence[Sequence[str]], drawn: Collection[str]) -> None:
    """Warn of what a mixture that is drawn once, for all passes over it, has not of its sources, where it is more than
    chance leaves out of each.
    """
    there = set(drawn)
    for number, documents in enumerate(sources, 1):
        rest = sum(each not in there for each in documents)
        if rest > 0.05 * len(documents):
            logger.warning("source %d of the mixture: %d of its %d are never trained on", number, rest, len(documents))


def prepared_documents(source: SourceSettings, language: str) -> list[str]:
    """The documents of a source that travels, filtered, each once.

    Raises `ConfigurationError` if there are none, or more than can travel with a run.
    """
    keep = DocumentFilter(source, language)
    kept: dict[str, None] = {}
    size = read = 0
    for raw in bible_documents() if source.source == "bible" else file_documents(source.files, source.text_column):
        read += 1
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
    if len(kept) < read:
        logger.warning(
            "%d of the %d documents of a source of the mixture are left out: by its filters, or because they repeat "
            "others",
            read - len(kept),
            read,
        )
    return list(kept)
