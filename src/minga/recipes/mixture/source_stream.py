"""One source as an endless stream of documents that can be left and resumed.

Theory of operation. A source gives its documents in passes, each in an order of its own seed, and begins the next pass
when one is over; so the proportions of a mixture hold for ever, also where one source is a thousand times as long as
another. The state of a stream is the number of its pass and how many documents of it were read: a source that is opened
again goes on from there.

A source on the network breaks now and then. It is opened again where it was, after pauses that double.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from minga.core.errors import ConfigurationError, StorageError

MAX_TRIES = 5
FIRST_PAUSE_S = 1.0

OpenPass = Callable[[int], Iterator[str]]
"""The documents of one pass, by its number; equal numbers give equal documents in equal order."""


class SourceState(msgspec.Struct, frozen=True):
    """How far a source was read: passes that are over, and documents of the present one."""

    passes: int = 0
    documents: int = 0


BEGINNING = SourceState()


class SourceStream:
    """The documents of `open_pass`, pass after pass, from `state` on."""

    def __init__(
        self, open_pass: OpenPass, state: SourceState = BEGINNING, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._open_pass, self._sleep = open_pass, sleep
        self._state = state
        self._documents: Iterator[str] | None = None

    @property
    def state(self) -> SourceState:
        """Where the next document is."""
        return self._state

    def __next__(self) -> str:
        """The next document.

        Raises `ConfigurationError` if a whole pass has none, `StorageError` if the source broke time and again.
        """
        problem: Exception | None = None
        for tries in range(MAX_TRIES):
            try:
                return self._next()
            except (ConfigurationError, StorageError):
                raise
            except Exception as error:  # libraries of data sets raise whatever their transports raise
                self._documents, problem = None, error
                self._sleep(FIRST_PAUSE_S * 2**tries)
        raise StorageError(f"a source of text broke {MAX_TRIES} times in a row: {problem}") from problem

    def _next(self) -> str:
        for _ in range(2):
            if self._documents is None:
                self._documents = islice(self._open_pass(self._state.passes), self._state.documents, None)
            for document in self._documents:
                self._state = SourceState(self._state.passes, self._state.documents + 1)
                return document
            self._documents, self._state = None, SourceState(self._state.passes + 1)
        raise ConfigurationError("a source of the mixture has no documents")
