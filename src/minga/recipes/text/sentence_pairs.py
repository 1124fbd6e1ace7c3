"""Sentence-order prediction: from documents to pairs of segments.

Sentences of a document are collected until they fill a sequence or the document ends. A collection of at least two
sentences is split between two of them, uniformly, and with probability one half the two segments change places; the
model has to tell whether they did. Then tokens are dropped from the end of the longer segment until the pair fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.recipes.data.order import endless, epoch_seed
from minga.recipes.interface import StreamPosition
from minga.recipes.text.tokenizer import encoded_texts
from minga.recipes.text.writing import Split, split_sentences

SPECIAL_PER_PAIR = 3
Tokens = NDArray[np.int32]


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


DOCUMENTS_AT_A_TIME = 256


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
