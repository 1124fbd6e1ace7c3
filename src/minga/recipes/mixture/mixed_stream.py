"""Documents of several sources in given proportions, shuffled in blocks.

Theory of operation. For each place of a block a source is drawn by the weights, and its next document that passes the
filter is taken: so the weights are shares of documents that are trained on, whatever the filters leave out. A document
that the block has already is left out as well. Then the block is shuffled. All chance in a block comes from the seed
and the number of the block, and so the state of a mixture is small: the number of the block, how much of it was given
out, and the states of the sources when it began. To resume means to fill the block once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from blake3 import blake3

from minga.core.errors import ConfigurationError
from minga.recipes.mixture.source_stream import OpenPass, SourceState, SourceStream

MAX_LEFT_OUT = 100_000
"""So many documents of a source in a row may be left out before it is taken for one that has none."""


@dataclass(frozen=True)
class MixedSource:
    """A source with its weight (above 0) and its filter, which gives None for what is left out."""

    open_pass: OpenPass
    weight: float
    keep: Callable[[str], str | None]


class MixtureState(msgspec.Struct, frozen=True):
    """Where a mixture stands: block, documents of it that were given out, and the sources as the block began."""

    block: int
    given: int
    sources: tuple[SourceState, ...]


class MixedStream:
    """The documents of `sources`, without end, in blocks of `block_size`, from `state` on."""

    def __init__(
        self, sources: Sequence[MixedSource], seed: int, block_size: int, state: MixtureState | None = None
    ) -> None:
        if not sources or block_size < 1:
            raise ConfigurationError(f"a mixture of {len(sources)} sources in blocks of {block_size} has no documents")
        state = state or MixtureState(0, 0, tuple(SourceState() for _ in sources))
        if len(state.sources) != len(sources) or not 0 <= state.given <= block_size or state.block < 0:
            raise ConfigurationError("the state of a mixture belongs to other settings")
        self._sources, self._seed, self._block_size = tuple(sources), seed, block_size
        self._shares = np.array([source.weight for source in sources]) / sum(source.weight for source in sources)
        self._number, self._given, self._begun = state.block, state.given, state.sources
        self._streams = [
            SourceStream(source.open_pass, begun) for source, begun in zip(sources, state.sources, strict=True)
        ]
        self._block: list[str] | None = None

    @property
    def state(self) -> MixtureState:
        """What continues this stream where it is, in another process."""
        return MixtureState(self._number, self._given, self._begun)

    def __iter__(self) -> MixedStream:
        return self

    def __next__(self) -> str:
        """The next document. Raises what `SourceStream` raises, and `ConfigurationError` if a filter keeps nothing."""
        if self._block is None:
            self._block = self._filled()
        if self._given == len(self._block):
            self._number, self._given = self._number + 1, 0
            self._begun = tuple(stream.state for stream in self._streams)
            self._block = self._filled()
        self._given += 1
        return self._block[self._given - 1]

    def _filled(self) -> list[str]:
        chance = np.random.default_rng([self._seed % 2**63, self._number])
        choices = chance.choice(len(self._sources), size=self._block_size, p=self._shares).tolist()
        seen: set[bytes] = set()
        documents = [self._draw(choice, seen) for choice in choices]
        return [documents[place] for place in chance.permutation(len(documents)).tolist()]

    def _draw(self, choice: int, seen: set[bytes]) -> str:
        """The next document of a source that counts; one that was seen counts only where there are no others."""
        stream, keep, begun = self._streams[choice], self._sources[choice].keep, self._streams[choice].state.passes
        for _ in range(MAX_LEFT_OUT):
            document = keep(next(stream))
            if document is None:
                continue
            digest = blake3(document.encode("utf-8", "surrogatepass")).digest()
            if digest not in seen or stream.state.passes > begun:
                seen.add(digest)
                return document
        raise ConfigurationError(
            f"source {choice + 1} of the mixture: of {MAX_LEFT_OUT} documents in a row its filters keep none"
        )
