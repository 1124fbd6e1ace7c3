"""Amendments: settings of a run that the organisers change while it goes on.

An amendment names what it changes, a step, and a number. It may be in force in rounds from that step on; whether it is,
the plan of each round says, so that all members of a round go by the same values. Of two amendments of one setting the
one with the higher number wins, whichever came first; of one number, that with the greater id.

A run has at most `MAX_AMENDMENTS`. They stay in force after the organisers' role was handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import msgspec
from blake3 import blake3

from minga.identity.access.orders import Order

MAX_AMENDMENTS = 200
MAX_CHANGES = 8
MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 60, 60
MAX_AMENDED_STEP = 10**9

Change = tuple[
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARACTERS)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_VALUE_CHARACTERS)],
]
"""A setting's key, such as optimizer.learning_rate, and its value as JSON."""


class Amendment(Order, frozen=True):
    """The settings `changes` may be in force in rounds of `from_step` and later ones."""

    CONTEXT: ClassVar[bytes] = b"run-amendment"

    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    from_step: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMENDED_STEP)]
    changes: Annotated[tuple[Change, ...], msgspec.Meta(min_length=1, max_length=MAX_CHANGES)]

    @property
    def id(self) -> str:
        """16 hexadecimal digits of the hash of what the organisers signed."""
        return blake3(self.statement()).hexdigest(length=8)

    @property
    def rank(self) -> tuple[int, str]:
        """What decides between two amendments of one setting."""
        return self.number, self.id


class Amendments:
    """All amendments of a run that one peer knows."""

    def __init__(self) -> None:
        self._known: dict[str, Amendment] = {}

    def __iter__(self) -> Iterator[Amendment]:
        """By number."""
        return iter(sorted(self._known.values(), key=lambda each: each.rank))

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def next_number(self) -> int:
        """Above every number that is known here."""
        return max((each.number for each in self._known.values()), default=0) + 1

    def take(self, amendment: Amendment) -> bool:
        """Enter one whose signatures were checked; whether it is new. Raises `ValueError` if there are too many."""
        if amendment.id in self._known:
            return False
        if len(self._known) >= MAX_AMENDMENTS:
            raise ValueError(f"a run has at most {MAX_AMENDMENTS} amendments")
        self._known[amendment.id] = amendment
        return True

    def due(self, step: int) -> tuple[str, ...]:
        """The ids of those that may be in force in the round of `step` and are not overruled, by number."""
        winners: dict[str, str] = {}
        for amendment in self:
            if amendment.from_step <= step:
                winners.update({key: amendment.id for key, _ in amendment.changes})
        wins = set(winners.values())
        return tuple(amendment.id for amendment in self if amendment.id in wins)

    def changes(self, ids: Iterable[str]) -> dict[str, str]:
        """What these amendments together say: the JSON of a value by key. Those not known here are left out."""
        found: dict[str, str] = {}
        for amendment in sorted((self._known[name] for name in ids if name in self._known), key=lambda a: a.rank):
            found.update(amendment.changes)
        return found
