"""Samples out of documents: rows of tokens of equal length, and pairs of segments."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Final, Literal, NamedTuple

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
from minga.recipes.text.writing import Split, split_sentences

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


# ---- Rows of tokens.
#
# `stream`: documents one after the other, cut wherever a row is full; no token is lost but those after the last row.
# `best-fit`: every row begins with a document, the largest that still fit follow, and the last one is cropped, so a row
# has few beginnings in its middle and no padding. `document`: rows never hold two documents; short ones are padded.


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


# ---- Sentence-order prediction: from documents to pairs of segments.
#
# Sentences of a document are collected until they fill a sequence or the document ends. A collection of at least two
# sentences is split between two of them, uniformly, and with probability one half the two segments change places; the
# model has to tell whether they did. Then tokens are dropped from the end of the longer segment until the pair fits.


SPECIAL_PER_PAIR = 3


class EncodedDocument(NamedTuple):
    """A document as tokens: `ids` of all sentences in a row, and `bounds`, where each begins, then where the last ends.

    `ids` has shape [tokens], `bounds` [sentences + 1].
    """

    ids: Tokens
    bounds: NDArray[np.int64]


class Instance(NamedTuple):
    """A training sample: two segments of tokens, and whether they changed places."""

    first: Tokens
    second: Tokens
    swapped: bool


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[str], split: Split = split_sentences
) -> list[EncodedDocument]:
    """The documents as tokens, without special ones; sentences that come to nothing are left out."""
    sentences = [split(document) for document in documents]
    flat = [sentence for document in sentences for sentence in document]
    encodings = iter(encoded_texts(tokenizer, flat))
    encoded = []
    for document in sentences:
        ids = [tokens for tokens in (next(encodings).ids for _ in document) if tokens]
        bounds = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum([len(tokens) for tokens in ids], out=bounds[1:])
        encoded.append(EncodedDocument(np.array([i for tokens in ids for i in tokens], dtype=np.int32), bounds))
    return encoded


def make_instances(
    documents: Iterable[EncodedDocument], max_length: int, random: np.random.Generator, *, vary_start: bool = True
) -> Iterator[Instance]:
    """The instances of some documents, in order; each has at most `max_length` tokens with the three special ones.

    With `vary_start` a long document begins at a random one of the sentences in the first sequence's worth of it, so
    that each pass over the data cuts it differently.
    """
    room = max_length - SPECIAL_PER_PAIR
    for document in documents:
        sentence = 0
        sentences = len(document.bounds) - 1
        if vary_start and len(document.ids) > 4 * room:
            sentence = int(np.searchsorted(document.bounds, random.integers(room), side="right")) - 1
        while sentence < sentences:
            start = document.bounds[sentence]
            # The first sentence that fills the sequence is part of it.
            end = int(np.searchsorted(document.bounds, start + room, side="left"))
            end = min(end, sentences)
            if end - sentence >= 2:
                split = document.bounds[random.integers(sentence + 1, end)]
                pair = document.ids[start:split], document.ids[split : document.bounds[end]]
                swapped = bool(random.integers(2))
                first, second = (pair[1], pair[0]) if swapped else pair
                keep = truncated_lengths(len(first), len(second), room)
                yield Instance(first[: keep[0]], second[: keep[1]], swapped)
            sentence = end


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths left when tokens are dropped one by one from the longer of two segments (the second if equal)."""
    if first + second <= room:
        return first, second
    if min(first, second) <= room // 2:
        return (first, room - first) if first <= second else (room - second, second)
    return (room + 1) // 2, room // 2


# ---- Each peer's own, endless, reproducible order of pairs of sentences.
#
# Text that travelled with the run is permuted as a whole by that seed; a data set of the hub goes through a shuffle
# buffer seeded by it. 256 documents at a time are tokenised, cut into instances, and their instances shuffled among
# each other, so that neighbours in a batch come from different documents.
#
# Streams of different peers are independent permutations of the same text, not shares of it: two peers that have each
# drawn a part p of an epoch have about that part of their text in common, but cut, split and masked differently.


class StoredCorpus:
    """Documents in memory; each is tokenised when it is first asked for, and kept as tokens from then on."""

    def __init__(self, documents: Sequence[str], tokenizer: Tokenizer, split: Split = split_sentences) -> None:
        self._documents: list[str | EncodedDocument] = list(documents)
        self._tokenizer, self._split = tokenizer, split

    def epoch(self, seed: int) -> Iterator[list[EncodedDocument]]:
        """All documents once, in a uniform permutation, some hundred at a time."""
        order = np.random.default_rng(seed).permutation(len(self._documents)).tolist()
        for start in range(0, len(order), DOCUMENTS_AT_A_TIME):
            yield self._encoded(order[start : start + DOCUMENTS_AT_A_TIME])

    def _encoded(self, places: list[int]) -> list[EncodedDocument]:
        texts = {place: text for place in places if isinstance(text := self._documents[place], str)}
        for place, encoded in zip(
            texts, encode_documents(self._tokenizer, list(texts.values()), self._split), strict=True
        ):
            self._documents[place] = encoded
        return [one for place in places if not isinstance(one := self._documents[place], str)]


class StreamedCorpus:
    """Documents that `open_epoch(seed)` yields, shuffled by that seed; tokenised as they come and not kept."""

    def __init__(
        self, open_epoch: Callable[[int], Iterable[str]], tokenizer: Tokenizer, split: Split = split_sentences
    ) -> None:
        self._open_epoch = open_epoch
        self._tokenizer, self._split = tokenizer, split

    def epoch(self, seed: int) -> Iterator[list[EncodedDocument]]:
        """All documents once, in the order of the source, some hundred at a time."""
        documents = iter(self._open_epoch(seed))
        while some := list(islice(documents, DOCUMENTS_AT_A_TIME)):
            yield encode_documents(self._tokenizer, some, self._split)


Corpus = StoredCorpus | StreamedCorpus
"""Training text as tokens, in an order that a seed chooses."""


def instances(corpus: Corpus, run_seed: int, position: StreamPosition, max_length: int) -> Iterator[Instance]:
    """The endless stream of one peer's training instances.

    Raises `ConfigurationError` if the text yields none at all.
    """

    def open_pass(epoch: int) -> Iterator[Instance]:
        seed = epoch_seed(run_seed, position, epoch)
        random = np.random.default_rng(seed)
        for documents in corpus.epoch(seed):
            some = list(make_instances(documents, max_length, random))
            random.shuffle(some)
            yield from some

    return endless(open_pass, f"data: no document has two sentences that fit into max_length = {max_length} tokens")


# ---- Text as numbered samples, so that a number names the same one on every machine.
#
# Ordinary training goes through the text in passes. Where anybody must be able to make anybody's batch again there are
# no passes: the samples of a run are the sequences that one gets by beginning at the first sentence of a document and
# after each sequence's worth of tokens, and a public batch draws from their numbers.


class PublicSamples:
    """The samples of some documents, none with more than `max_length` tokens.

    Raises `ConfigurationError` if the documents yield none at all.
    """

    def __init__(
        self, documents: Iterable[str], tokenizer: Tokenizer, max_length: int, split: Split = split_sentences
    ) -> None:
        self._max_length = max_length
        self._places: list[EncodedDocument] = []
        """The text of each sample and what follows it in its document."""
        corpus = StreamedCorpus(lambda _: documents, tokenizer, split)
        for document in chain.from_iterable(corpus.epoch(0)):
            self._places += [place for place in self._cut(document) if self._yields(place)]
        if not self._places:
            raise ConfigurationError(
                f"data: no document has two sentences that fit into max_length = {max_length} tokens"
            )

    def __len__(self) -> int:
        return len(self._places)

    def instance(self, number: int, random: np.random.Generator) -> Instance:
        """The sample of that number, split and perhaps swapped by chance."""
        return next(make_instances([self._places[number]], self._max_length, random, vary_start=False))

    def _cut(self, document: EncodedDocument) -> Iterator[EncodedDocument]:
        room = self._max_length - SPECIAL_PER_PAIR
        bounds = document.bounds
        firsts = np.searchsorted(bounds, np.arange(0, len(document.ids), room), side="right") - 1
        for first in np.unique(firsts):
            last = min(int(np.searchsorted(bounds, bounds[first] + room)), len(bounds) - 1)
            yield EncodedDocument(document.ids[bounds[first] : bounds[last]], bounds[first : last + 1] - bounds[first])

    def _yields(self, place: EncodedDocument) -> bool:
        instances = make_instances([place], self._max_length, np.random.default_rng(0), vary_start=False)
        return next(instances, None) is not None
