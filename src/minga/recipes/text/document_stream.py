"""Each peer's own, endless, reproducible order of the training data.

Every pass over the data (an *epoch*) has a seed: the BLAKE3 digest of the run's seed, the stream's position (key of
the peer, worker, step at which it joined) and the number of the epoch. Text that travelled with the run is permuted as
a whole by that seed; a data set of the hub goes through a shuffle buffer seeded by it. 256 documents at a time are
tokenised, cut into instances, and their instances shuffled among each other, so that neighbours in a batch come from
different documents.

Streams of different peers are independent permutations of the same text, not shares of it: two peers that have each
drawn a part p of an epoch have about that part of their text in common, but cut, split and masked differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice

import numpy as np
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.recipes.interface import StreamPosition
from minga.recipes.order import epoch_seed
from minga.recipes.text.sentence_pairs import EncodedDocument, Instance, Split, encode_documents, make_instances
from minga.recipes.writing.sentences import split_sentences

DOCUMENTS_AT_A_TIME = 256


class Corpus(ABC):
    """Training text as tokens, in an order that a seed chooses."""

    @abstractmethod
    def epoch(self, seed: int) -> Iterator[list[EncodedDocument]]:
        """All documents once, some hundred at a time."""


class StoredCorpus(Corpus):
    """Documents in memory; each is tokenised when it is first asked for, and kept as tokens from then on."""

    def __init__(self, documents: Sequence[str], tokenizer: Tokenizer, split: Split = split_sentences) -> None:
        self._documents: list[str | EncodedDocument] = list(documents)
        self._tokenizer, self._split = tokenizer, split

    def epoch(self, seed: int) -> Iterator[list[EncodedDocument]]:
        """A uniform permutation of the documents."""
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


class StreamedCorpus(Corpus):
    """Documents that `open_epoch(seed)` yields, shuffled by that seed; tokenised as they come and not kept."""

    def __init__(
        self, open_epoch: Callable[[int], Iterable[str]], tokenizer: Tokenizer, split: Split = split_sentences
    ) -> None:
        self._open_epoch = open_epoch
        self._tokenizer, self._split = tokenizer, split

    def epoch(self, seed: int) -> Iterator[list[EncodedDocument]]:
        """The documents in the order of the source."""
        documents = iter(self._open_epoch(seed))
        while some := list(islice(documents, DOCUMENTS_AT_A_TIME)):
            yield encode_documents(self._tokenizer, some, self._split)


def instances(corpus: Corpus, run_seed: int, position: StreamPosition, max_length: int) -> Iterator[Instance]:
    """The endless stream of one peer's training instances.

    Raises `ConfigurationError` if the text yields none at all.
    """
    for epoch in count():
        seed = epoch_seed(run_seed, position, epoch)
        random = np.random.default_rng(seed)
        empty = True
        for documents in corpus.epoch(seed):
            some = list(make_instances(documents, max_length, random))
            random.shuffle(some)
            empty = empty and not some
            yield from some
        if empty:
            raise ConfigurationError(
                f"data: no document has two sentences that fit into max_length = {max_length} tokens"
            )
