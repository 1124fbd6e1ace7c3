"""Streams over a network break off now and then: they are opened again, and go on where they were.

After a failure come pauses of 1, 2, 4, 8 and 16 seconds; the next item that arrives makes them short again. A stream
of which nothing ever came is given up at once: it is more likely named wrongly than broken. The second pass over a
source is another matter (`next_pass`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from minga.core.errors import ConfigurationError, LocalError

T = TypeVar("T")

ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 1.0


def streamed_rows(rows: Iterable[Any], source: str) -> Iterator[Any]:
    """The rows of a streamed data set. Raises `LocalError`, which names the `source`, if the stream breaks off."""
    iterator = iter(rows)
    while True:
        try:
            row = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # each of the formats and transports underneath has errors of its own
            raise LocalError(f"{source}: the stream broke off: {str(error)[:500]}") from error
        yield row


def resumed_rows(rows: Any, source: str, pause: Callable[[float], None] = time.sleep) -> Iterator[Any]:
    """The same of a `datasets.IterableDataset` whose rows pass through no shuffle buffer: it is opened again after the
    last row, so files that were read are not read again.

    Raises the `LocalError` of the last attempt.
    """
    state: dict[str, Any] | None = None

    def opened() -> Iterator[Any]:
        nonlocal state
        if state is not None:
            rows.load_state_dict(state)
        for row in streamed_rows(rows, source):
            state = rows.state_dict()
            yield row

    return _again(lambda _: opened(), pause)


def reread(open_stream: Callable[[], Iterable[T]], pause: Callable[[float], None] = time.sleep) -> Iterator[T]:
    """The items of a stream that is the same each time it is opened: what had come is passed over after a failure.

    Raises the `LocalError` of the last attempt.
    """
    return _again(lambda seen: islice(open_stream(), seen, None), pause)


def next_pass(open_stream: Callable[[], Iterable[T]], pause: Callable[[float], None] = time.sleep) -> Iterator[T]:
    """The items of a stream whose source has given all its items before: it is tried again even if it cannot be opened,
    or nothing comes.

    Raises the `LocalError` of the last attempt.
    """
    for failures in range(ATTEMPTS + 1):
        try:
            items = iter(open_stream())
            first = list(islice(items, 1))
        except LocalError:
            if failures == ATTEMPTS:
                raise
            pause(FIRST_PAUSE_S * 2**failures)
        else:
            yield from first
            yield from items
            return


def _again(open_at: Callable[[int], Iterator[T]], pause: Callable[[float], None]) -> Iterator[T]:
    """What `open_at` yields, which is told how many items had come."""
    seen, failures = 0, 0
    while True:
        try:
            for item in open_at(seen):
                yield item
                seen, failures = seen + 1, 0
            return
        except ConfigurationError:
            raise
        except LocalError:
            failures += 1
            if not seen or failures > ATTEMPTS:
                raise
        pause(FIRST_PAUSE_S * 2 ** (failures - 1))
