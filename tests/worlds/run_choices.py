"""Pairs of settings of run specs that choose something by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from documentation.combinations import Settings, choices, spelled


def pairs() -> Iterator[Settings]:
    """Each value of one setting with each value of another one."""
    for (first, ones), (second, others) in itertools.combinations(choices().items(), 2):
        for one, other in itertools.product(ones, others):
            yield {first: one, second: other}


def words(settings: Settings) -> str:
    """The settings as the id of a test."""
    return ",".join(f"{key.rpartition('.')[2]}={spelled(value)}" for key, value in settings.items())
