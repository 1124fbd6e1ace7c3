"""Data sets of the Hugging Face hub, and files of the kinds that the library `datasets` reads: opened, and read row by
row, also over lines that break off now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from itertools import chain
from typing import Any, Final

import numpy as np

from minga.core.errors import ConfigurationError, LocalError
from minga.recipes.data.order import ATTEMPTS, FIRST_PAUSE_S
from minga.recipes.data_source import check_on_hub

FEW_PARTS: Final = 16
"""A data set of fewer parts has too few orders for the streams of all peers to be different."""

MOST_SKIPPED: Final = 10_000
"""Rows; those of a data set in one part have to be read to be skipped."""


def open_hub(name: str, config: str = "", split: str = "train", revision: str = "") -> Any:
    """A data set of the hub as a `datasets.IterableDataset`; nothing is downloaded as a whole.

    Raises `ConfigurationError`, with the library's own words, if it cannot be opened, and if the name leads to files of
    this machine.
    """
    check_on_hub(name, "data.name")
    return opened(f"data.name = {name!r}", name, name=config or None, split=split, revision=revision or None)


def opened(setting: str, path: str, **how: Any) -> Any:
    """What `datasets.load_dataset` opens; `setting` names it in errors. Pictures stay files: what it costs to decode
    them is bounded elsewhere.

    Raises `ConfigurationError` if it cannot be opened.
    """
    import datasets

    try:
        found = datasets.load_dataset(path, **{"streaming": True, **how})
        for column, feature in (getattr(found, "features", None) or {}).items():
            if isinstance(feature, datasets.Image) and feature.decode:
                found = found.cast_column(column, datasets.Image(decode=False))
        return found
    except (OSError, ValueError, RuntimeError, TypeError, datasets.exceptions.DatasetsError) as error:
        hint = ""
        if "script" in str(error):
            hint = '; where a data set has a loading script, try revision = "refs/convert/parquet"'
        raise ConfigurationError(f"{setting}: cannot be opened: {str(error)[:500]}{hint}") from error


def rows_of(dataset: Any, source: str, order: int | None = None) -> Iterator[Mapping[str, Any]]:
    """The rows of a `datasets.IterableDataset`; `order` seeds another order, as `in_order_of` describes it.

    Raises `ConfigurationError` for rows without columns, and `LocalError`, which names the `source`, if the stream
    breaks off again and again.
    """
    stretches = [dataset] if order is None else in_order_of(order, dataset, source)
    found = (resumed_rows(stretch, source, is_known=number > 0) for number, stretch in enumerate(stretches))
    for row in chain.from_iterable(found):
        if not isinstance(row, Mapping):
            raise ConfigurationError(f"{source}: a row has no columns")
        yield row


def resumed_rows(
    rows: Any, source: str, pause: Callable[[float], None] = time.sleep, *, is_known: bool = False
) -> Iterator[Any]:
    """The rows of a `datasets.IterableDataset` that pass through no shuffle buffer. After a failure, and a pause, it is
    opened again behind the last row: files that were read are not read again, and of the one under way only what its
    format cannot skip. Pauses take 1, 2, 4, 8 and 16 seconds; the next row that arrives makes them short again. A
    stream of which nothing ever came is given up at once, unless it `is_known` that its source can be read: it is more
    likely named wrongly than broken.

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
            if (state is None and not is_known) or failures > ATTEMPTS:
                raise LocalError(f"{source}: the stream broke off: {str(error)[:500]}") from error
        pause(FIRST_PAUSE_S * 2 ** (failures - 1))


def in_order_of(seed: int, rows: Any, source: str) -> list[Any]:
    """The rows of a `datasets.IterableDataset` in an order of the seed, as data sets to read one after the other.

    That is an order of its parts, each of which is read to its end before the next one: of parts that are read beside
    each other, all would be read again after a failure. Where it has few files, their parts are those inside of them,
    if the format (Parquet) and the library know such; where there are few of these, too, the order also begins at most
    10,000 rows later, and ends with what it began behind.

    Raises `LocalError`, which names the `source`, if the files cannot be read.
    """
    if rows.n_shards < FEW_PARTS and hasattr(rows, "reshard"):  # datasets 5; it reads all files' tables of contents
        try:
            rows = rows.reshard()
        except Exception as error:  # each of the formats and transports underneath has errors of its own
            raise LocalError(f"{source}: cannot be read: {str(error)[:500]}") from error
    shuffle = partial(rows.shuffle, seed=seed % 2**31, buffer_size=1)  # some libraries take 32-bit seeds only
    beside = "max_buffer_input_shards"  # datasets 5
    found = shuffle(**{beside: 1}) if beside in signature(rows.shuffle).parameters else shuffle()
    if rows.n_shards >= FEW_PARTS:
        return [found]
    skipped = int(np.random.default_rng(seed % 2**63).integers(MOST_SKIPPED))
    return [found.skip(skipped), found.take(skipped)]
