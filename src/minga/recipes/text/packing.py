"""Rows of tokens out of documents: how text is cut into samples of equal length.

`stream`: documents one after the other, cut wherever a row is full; no token is lost but those after the last row.
`best-fit`: every row begins with a document, the largest that still fit follow, and the last one is cropped, so a row
has few beginnings in its middle and no padding. `document`: rows never hold two documents; short ones are padded.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice, repeat
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.data.files import stored_tensors
from minga.recipes.data.order import endless, epoch_seed, shuffled_blocks
from minga.recipes.interface import StreamPosition
from minga.recipes.text.tokenizer import encoded_texts

# ---- Training text as tokens, in a file that travels with the run: all peers have the same, and no peer tokenises.
#
# `tokens.safetensors` holds one int32 array, the documents in their order with a token for the end after each, and the
# places where they begin. It is memory-mapped, so a text may be larger than a peer's memory.


TOKENS_FILE = "tokens.safetensors"
DOCUMENTS_AT_A_TIME = 256
Tokens = NDArray[np.int32]


def encoded(documents: Iterable[str], tokenizer: Tokenizer, end: int) -> Iterator[Tokens]:
    """Each document as tokens, `end` after it; those that come to nothing are left out."""
    rest = iter(documents)
    while some := list(islice(rest, DOCUMENTS_AT_A_TIME)):
        for encoding in encoded_texts(tokenizer, some):
            if encoding.ids:
                yield np.array([*encoding.ids, end], dtype=np.int32)


def pack_tokens(documents: Sequence[Tokens]) -> bytes:
    """The content of `tokens.safetensors`. Raises `ConfigurationError` if it is too much to travel with a run."""
    size = 4 * sum(len(document) for document in documents)
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"data: {size >> 20} MiB of tokens, too much to travel with a run; publish the text as a data set and use "
            'source = "datasets"'
        )
    tokens = np.concatenate(documents) if documents else np.empty(0, dtype=np.int32)
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return save({"tokens": tokens, "starts": starts})


class StoredTokens:
    """The documents of `tokens.safetensors`, memory-mapped.

    Raises `ConfigurationError` if the file is no such file or has tokens outside of a vocabulary of `vocabulary_size`,
    and `StorageError` if it cannot be read.
    """

    def __init__(self, path: Path, vocabulary_size: int) -> None:
        tokens, starts = stored_tensors(path, "tokens", "tokens", "starts")
        if (tokens.dtype, starts.dtype) != (torch.int32, torch.int64) or (tokens.ndim, starts.ndim) != (1, 1):
            raise ConfigurationError(f"{path}: not a file of tokens: other types or shapes")
        self.tokens: Tokens = tokens.numpy()
        self._starts: NDArray[np.int64] = starts.numpy()
        bounds = self._starts
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(self.tokens) or (np.diff(bounds) < 1).any():
            raise ConfigurationError(f"{path}: not a file of tokens: its documents do not follow each other")
        if self.tokens.min() < 0 or self.tokens.max() >= vocabulary_size:
            raise ConfigurationError(f"{path}: tokens outside of the vocabulary of {vocabulary_size}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def documents(self, order: Iterable[int] | None = None) -> Iterator[Tokens]:
        """All documents in their order, or some in another."""
        for place in range(len(self)) if order is None else order:
            yield self.tokens[self._starts[place] : self._starts[place + 1]]


Packing = Literal["stream", "best-fit", "document"]
FIT_AMONG: Final = 256
"""Documents among which `best-fit` chooses."""

ROWS_AT_A_TIME: Final = 2048
"""Rows that are shuffled among each other, so that neighbours in a batch come from different documents."""


def pack_rows(documents: Iterable[Tokens], length: int, packing: Packing) -> Iterator[Tokens]:
    """Rows of `length` tokens in the order of the documents; those of `document` may be shorter, down to 2."""
    if packing == "stream":
        return _stream(documents, length)
    return _best_fit(documents, length) if packing == "best-fit" else _document(documents, length)


def _stream(documents: Iterable[Tokens], length: int) -> Iterator[Tokens]:
    waiting: list[Tokens] = []
    waiting_tokens = 0
    for document in documents:
        waiting.append(document)
        waiting_tokens += len(document)
        if waiting_tokens < length:
            continue
        joined = np.concatenate(waiting)
        full = len(joined) // length * length
        yield from joined[:full].reshape(-1, length)
        waiting, waiting_tokens = [joined[full:]], len(joined) - full


def _best_fit(documents: Iterable[Tokens], length: int) -> Iterator[Tokens]:
    rest = iter(documents)
    waiting: list[tuple[int, int, Tokens]] = []  # by length, then in their order
    arrivals = count()
    while True:
        row: list[Tokens] = []
        room = length
        while room:
            for document in islice(rest, FIT_AMONG - len(waiting)):
                insort(waiting, (len(document), next(arrivals), document))
            if not waiting:
                return
            fitting = bisect_right(waiting, room, key=lambda each: each[0])
            _, _, chosen = waiting.pop(fitting - 1 if fitting else 0)
            row.append(chosen[:room])
            room -= len(row[-1])
        yield np.concatenate(row)


def _document(documents: Iterable[Tokens], length: int) -> Iterator[Tokens]:
    for document in documents:
        for start in range(0, len(document), length):
            row = document[start : start + length]
            if len(row) >= 2:
                yield row


def endless_rows(
    open_epoch: Callable[[int], Iterable[Tokens]],
    run_seed: int,
    position: StreamPosition,
    length: int,
    packing: Packing,
) -> Iterator[Tokens]:
    """One peer's endless stream of rows; `open_epoch` gives the documents of a pass in the order that its seed draws.

    Raises `ConfigurationError` if the text yields no row at all.
    """

    def open_pass(epoch: int) -> Iterator[Tokens]:
        seed = epoch_seed(run_seed, position, epoch)
        rows = pack_rows(open_epoch(seed), length, packing)
        return shuffled_blocks(rows, ROWS_AT_A_TIME, repeat(np.random.default_rng(seed)))

    return endless(open_pass, f"data: there is too little text for a single row of {length} tokens")


class NumberedRows:
    """The rows of stored documents in their order, so that a number names the same row on every machine.

    Raises `ConfigurationError` if there are none.
    """

    def __init__(self, stored: StoredTokens, length: int, packing: Packing) -> None:
        self._rows: Sequence[Tokens] | NDArray[np.int32]
        if packing == "stream":  # views of the memory-mapped file
            full = len(stored.tokens) // length * length
            self._rows = stored.tokens[:full].reshape(-1, length)
        else:
            self._rows = list(pack_rows(stored.documents(), length, packing))
        if not len(self._rows):
            raise ConfigurationError(f"data: there is too little text for a single row of {length} tokens")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Tokens:
        return self._rows[number]
