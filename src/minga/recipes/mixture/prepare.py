"""What the organiser makes of a mixture: held-out documents, files that travel, and text to train a tokenizer on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from minga.core.errors import ConfigurationError
from minga.recipes.mixture.mixed_stream import MixedSource, MixedStream
from minga.recipes.mixture.open_sources import first_of_hub, is_shipped, prepared_documents, shipped_file
from minga.recipes.text.corpus import heldout_rank, pack_documents, split_documents
from minga.recipes.text.settings import TextData
from minga.recipes.writing.by_language import as_it_is

HUB_DOCUMENTS = 2000
"""Documents of a data set that the organiser reads for the tokenizer and for what is held out."""


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
        if is_shipped(source)
    }
    everything = [document for documents in shipped.values() for document in documents]
    heldout = set(split_documents(everything, data.heldout_fraction)[1]) if everything else set()
    training = {number: [each for each in documents if each not in heldout] for number, documents in shipped.items()}
    for number, source in enumerate(data.sources):
        if number not in shipped:
            first = first_of_hub(source, data.language, HUB_DOCUMENTS)
            heldout |= {each for each in first if heldout_rank(each) < data.heldout_fraction}
            training[number] = [each for each in first if heldout_rank(each) >= data.heldout_fraction]
    if empty := [number + 1 for number, documents in training.items() if not documents]:
        raise ConfigurationError(f"source {empty[0]} of the mixture has no document to train on besides the held-out")
    return PreparedMixture(
        list(islice(_mixed(data, training, seed), sum(map(len, training.values())))),
        sorted(heldout),
        {shipped_file(number): pack_documents(training[number]) for number in shipped} if data.is_streamed else {},
    )


def _mixed(data: TextData, training: dict[int, list[str]], seed: int) -> MixedStream:
    def source(number: int) -> MixedSource:
        def open_pass(_: int) -> Iterator[str]:
            return iter(training[number])

        return MixedSource(open_pass, data.sources[number].weight, as_it_is)

    return MixedStream([source(number) for number in range(len(data.sources))], seed, data.shuffle_buffer)
