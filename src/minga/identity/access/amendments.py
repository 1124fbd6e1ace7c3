"""Orders that change a run while it goes on: amendments of its settings, and regroups.

An amendment names what it changes, a step, and a number. It may be in force in rounds from that step on; whether it is,
the plan of each round says, so that all members of a round go by the same values. Of two amendments of one setting the
one with the higher number wins, whichever came first; of one number, that with the greater id.

A regroup names the members that go on where the majority of the last round is lost, and the newest step that one of
them had; see `averaging/allreduce/commit.py`. Each begins another *epoch* of the run.

A run has at most `MAX_AMENDMENTS`, and `MAX_REGROUPS`. Those that a transfer of the organisers' role names stay in
force after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, ClassVar

import msgspec
from blake3 import blake3

from minga.identity.access.orders import Key, Order

MAX_AMENDMENTS = 200
MAX_REGROUPS = 8
MAX_PRESENT = 1000
MAX_CHANGES = 8
MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 60, 60
MAX_AMENDED_STEP = 10**9

Change = tuple[
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARACTERS)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_VALUE_CHARACTERS)],
]
"""A setting's key, such as optimizer.learning_rate, and its value as JSON."""


class ChangeOrder(Order, frozen=True):
    """An order that changes the run."""

    @property
    def change_id(self) -> bytes:
        """8 bytes of the hash of what the organisers signed."""
        return bytes(blake3(self.statement()).digest(length=8))


class Amendment(ChangeOrder, frozen=True):
    """The settings `changes` may be in force in rounds of `from_step` and later ones."""

    CONTEXT: ClassVar[bytes] = b"run-amendment"

    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    from_step: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMENDED_STEP)]
    changes: Annotated[tuple[Change, ...], msgspec.Meta(min_length=1, max_length=MAX_CHANGES)]

    @property
    def id(self) -> str:
        """The change's id, hexadecimal."""
        return self.change_id.hex()

    def first_step(self, early: Collection[str]) -> int:
        """The first step in whose round it may be in force, where these settings are a round ahead of their step."""
        return self.from_step - any(key in early for key, _ in self.changes)

    @property
    def rank(self) -> tuple[int, str]:
        """What decides between two amendments of one setting."""
        return self.number, self.id


class Amendments:
    """All amendments of a run that one peer knows."""

    def __init__(self) -> None:
        self._known: dict[str, Amendment] = {}
        self._void: dict[str, Amendment] = {}
        """Those that count no more: a round that began by one ends by it."""

    def __iter__(self) -> Iterator[Amendment]:
        """By number."""
        return iter(sorted(self._known.values(), key=lambda each: each.rank))

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in self._void

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

    def keep(self, counts: Callable[[Amendment], bool]) -> None:
        """Let no round begin by those any more that do not count."""
        self._void.update({name: each for name, each in self._known.items() if not counts(each)})
        self._known = {name: each for name, each in self._known.items() if name not in self._void}

    def due(self, step: int, early: Collection[str] = ()) -> tuple[str, ...]:
        """The ids of those that may be in force in the round of `step` and are not overruled, by number. Settings that
        come `early` are in force in the round before their step.
        """
        winners: dict[str, str] = {}
        for amendment in self:
            if amendment.first_step(early) <= step:
                winners.update({key: amendment.id for key, _ in amendment.changes})
        wins = set(winners.values())
        return tuple(amendment.id for amendment in self if amendment.id in wins)

    def not_due(self, ids: Iterable[str], step: int, early: Collection[str] = ()) -> tuple[str, ...]:
        """Which of these are for later steps than `step`."""
        known = {**self._void, **self._known}
        return tuple(name for name in ids if name in known and known[name].first_step(early) > step)

    def changes(self, ids: Iterable[str]) -> dict[str, str]:
        """What these amendments together say: the JSON of a value by key. Those not known here are left out."""
        found: dict[str, str] = {}
        known = {**self._void, **self._known}
        for amendment in sorted((known[name] for name in ids if name in known), key=lambda a: a.rank):
            found.update(amendment.changes)
        return found


class Regroup(ChangeOrder, frozen=True):
    """The run goes on with these `members`, from the newest state among them, which is of `step`."""

    CONTEXT: ClassVar[bytes] = b"run-regroup"

    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMENDED_STEP)]
    members: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=MAX_PRESENT)]

    @property
    def epoch(self) -> int:
        """Above that of every regroup with a lower number; of one number, the hash decides."""
        return self.number << 32 | int.from_bytes(blake3(self.statement()).digest(length=4), "big")

    @property
    def present(self) -> tuple[str, ...]:
        """The members' ids."""
        return tuple(key.hex() for key in self.members)


class Regroups:
    """All regroups of a run that one peer knows."""

    def __init__(self) -> None:
        self._known: dict[int, Regroup] = {}

    def __iter__(self) -> Iterator[Regroup]:
        """The newest last."""
        return iter([self._known[epoch] for epoch in sorted(self._known)])

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._known

    def keep(self, counts: Callable[[Regroup], bool]) -> None:
        """Forget those that do not count any more."""
        self._known = {epoch: each for epoch, each in self._known.items() if counts(each)}

    @property
    def newest(self) -> Regroup | None:
        """The one that counts."""
        return self._known[max(self._known)] if self._known else None

    def take(self, regroup: Regroup) -> bool:
        """Enter one whose signatures were checked; whether it is new. Raises `ValueError` if there are too many."""
        if regroup.epoch in self._known:
            return False
        if len(self._known) >= MAX_REGROUPS:
            raise ValueError(f"a run is regrouped at most {MAX_REGROUPS} times")
        self._known[regroup.epoch] = regroup
        return True
