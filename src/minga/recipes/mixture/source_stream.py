"""One source as an endless stream of documents that can be left and resumed.

Theory of operation. A source gives its documents in passes, each in an order of its own seed, and begins the next pass
when one is over; so the proportions of a mixture hold for ever, also where one source is a thousand times as long as
another. The state of a stream is the number of its pass and how many documents of it were read: a source that is opened
again goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from minga.core.errors import ConfigurationError
from minga.recipes.broken_streams import next_pass

OpenPass = Callable[[int], Iterator[str]]
"""The documents of one pass, by its number; equal numbers give equal documents in equal order."""


class SourceState(msgspec.Struct, frozen=True):
    """How far a source was read: passes that are over, and documents of the present one."""

    passes: int = 0
    documents: int = 0


BEGINNING = SourceState()


class SourceStream:
    """The documents of `open_pass`, pass after pass, from `state` on."""

    def __init__(self, open_pass: OpenPass, state: SourceState = BEGINNING) -> None:
        self._open_pass, self._state = open_pass, state
        self._documents: Iterator[str] | None = None

    @property
    def state(self) -> SourceState:
        """Where the next document is."""
        return self._state

    def __next__(self) -> str:
        """The next document.

        Raises `ConfigurationError` if a whole pass has none, and what the source raises.
        """
        for _ in range(2):
            if self._documents is None:
                self._documents = islice(self._opened(), self._state.documents, None)
            try:
                document = next(self._documents, None)
            except BaseException:
                self._documents = None  # a generator that raised would be taken for one that is at its end
                raise
            if document is not None:
                self._state = SourceState(self._state.passes, self._state.documents + 1)
                return document
            self._documents, self._state = None, SourceState(self._state.passes + 1)
        raise ConfigurationError("a source of the mixture has no documents")

    def _opened(self) -> Iterator[str]:
        number = self._state.passes
        return self._open_pass(0) if number == 0 else next_pass(lambda: self._open_pass(number))
