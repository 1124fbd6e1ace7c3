"""Streams over a network break off now and then: they are opened again, and go on where they were.

After a failure come pauses of 1, 2, 4, 8 and 16 seconds; the next item that arrives makes them short again. A stream
of which nothing ever came is given up at once: it is more likely named wrongly than broken. The second pass over a
source is another matter (`next_pass`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any, Final, TypeVar

from minga.core.errors import ConfigurationError, LocalError

T = TypeVar("T")

ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 1.0


def resumed_rows(rows: Any, source: str, pause: Callable[[float], None] = time.sleep) -> Iterator[Any]:
    """The rows of a `datasets.IterableDataset` that pass through no shuffle buffer. After a failure it is opened again
    behind the last row: files that were read are not read again, and of the one under way only what its format cannot
    skip.

    Raises the `LocalError` of the last attempt, which names the `source`, and at once a `ConfigurationError`.
    """
    state: dict[str, Any] | None = None
    failures = 0
    while True:
        try:
            if state is not None:
                rows.load_state_dict(state)
            for row in rows:
                state, failures = rows.state_dict(), 0
                yield row
            return
        except ConfigurationError:  # another attempt would not help
            raise
        except Exception as error:  # each of the formats and transports underneath has errors of its own
            failures += 1
            if state is None or failures > ATTEMPTS:
                raise LocalError(f"{source}: the stream broke off: {str(error)[:500]}") from error
        pause(FIRST_PAUSE_S * 2 ** (failures - 1))


def in_order_of(seed: int, rows: Any) -> Any:
    """The parts of a `datasets.IterableDataset` in an order of the seed, each read to its end before the next one: of
    parts that are read beside each other, all would be read again after a failure.
    """
    shuffle = partial(rows.shuffle, seed=seed % 2**31, buffer_size=1)  # some libraries take 32-bit seeds only
    beside = "max_buffer_input_shards"  # datasets 5
    return shuffle(**{beside: 1}) if beside in signature(rows.shuffle).parameters else shuffle()


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
