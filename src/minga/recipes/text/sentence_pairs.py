"""Sentence-order prediction: from documents to pairs of segments.

Sentences of a document are collected until they fill a sequence or the document ends. A collection of at least two
sentences is split between two of them, uniformly, and with probability one half the two segments change places; the
model has to tell whether they did. Then tokens are dropped from the end of the longer segment until the pair fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minga.recipes.text.foreign_tokenizer import encoded_texts
from minga.recipes.writing.sentences import split_sentences

SPECIAL_PER_PAIR = 3
Tokens = NDArray[np.int32]
Split = Callable[[str], list[str]]


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
