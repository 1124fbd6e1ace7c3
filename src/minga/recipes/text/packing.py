"""Rows of tokens out of documents: how text is cut into samples of equal length.

`stream`: documents one after the other, cut wherever a row is full; no token is lost but those after the last row.
`best-fit`: every row begins with a document, the largest that still fit follow, and the last one is cropped, so a row
has few beginnings in its middle and no padding. `document`: rows never hold two documents; short ones are padded.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from minga.core.errors import ConfigurationError
from minga.recipes.interface import StreamPosition
from minga.recipes.order import epoch_seed
from minga.recipes.text.tokens import StoredTokens, Tokens

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
    for epoch in count():
        seed = epoch_seed(run_seed, position, epoch)
        random = np.random.default_rng(seed)
        rows = pack_rows(open_epoch(seed), length, packing)
        empty = True
        while some := list(islice(rows, ROWS_AT_A_TIME)):
            empty = False
            yield from (some[place] for place in random.permutation(len(some)))
        if empty:
            raise ConfigurationError(f"data: there is too little text for a single row of {length} tokens")


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
