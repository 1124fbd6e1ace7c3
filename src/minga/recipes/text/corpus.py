"""The text of a run as its peers get it: files of documents, part of them held out.

Where the organiser has the text (the Bible, own files, made-up sentences), all of it travels with the run, so that a
volunteer needs nothing but the link. Of a data set on the Hugging Face hub only the held-out documents travel; each
peer streams the rest itself.

Which documents are held out follows from their texts alone, so equal ones never end up on both sides.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.data.hold_out import content_rank, held_out
from minga.recipes.data.hub import open_hub
from minga.recipes.text.settings import TextData
from minga.recipes.text.sources import (
    bible_documents,
    dataset_documents,
    file_documents,
    sentence_documents,
)
from minga.recipes.text.writing import WRITINGS

TRAINING_FILE = "training.jsonl.gz"
MAX_TEXT_CHARACTERS = 256 << 20
MAX_DOCUMENTS = 16 << 20
HELDOUT_FILE = "heldout.jsonl.gz"
MAX_STREAMED_HELDOUT = 256
MAX_STREAMED_SCAN = 50_000
MAX_SCAN_CHARACTERS = 16 << 20
_MAX_LINE_BYTES = 16 << 20


def split_documents(documents: list[str], heldout_fraction: float) -> tuple[list[str], list[str]]:
    """The documents for training and those held out, each in the order given.

    Raises `ConfigurationError` if there is nothing to train on.
    """
    if not documents:
        raise ConfigurationError("data: there is no text")
    chosen = held_out(documents, heldout_fraction)
    training, heldout = (
        [document for document, is_out in zip(documents, chosen, strict=True) if is_out == wanted]
        for wanted in (False, True)
    )
    return training, heldout


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
    dataset = open_hub(data.name, data.config, data.split)
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
