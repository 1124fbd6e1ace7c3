"""Text as numbered samples, so that a number names the same one on every machine.

Ordinary training goes through the text in passes. Where anybody must be able to make anybody's batch again there are
no passes: the samples of a run are the sequences that one gets by beginning at the first sentence of a document and
after each sequence's worth of tokens, and a public batch draws from their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.recipes.text.sentence_pairs import (
    SPECIAL_PER_PAIR,
    EncodedDocument,
    Instance,
    Split,
    encode_documents,
    make_instances,
)
from minga.recipes.writing.sentences import split_sentences

DOCUMENTS_AT_A_TIME = 256


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
        for document in _encoded(documents, tokenizer, split):
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


def _encoded(documents: Iterable[str], tokenizer: Tokenizer, split: Split) -> Iterator[EncodedDocument]:
    some: list[str] = []
    for document in documents:
        some.append(document)
        if len(some) == DOCUMENTS_AT_A_TIME:
            yield from encode_documents(tokenizer, some, split)
            some.clear()
    yield from encode_documents(tokenizer, some, split)
