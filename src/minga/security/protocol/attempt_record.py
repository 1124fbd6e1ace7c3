"""What an attempt is about, and what is known of it when it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.codecs.tensor_bytes import bytes_of, load
from minga.core.buffer_pool import Bytes
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.rules import Rules
from minga.security.protocol.statements import Claims, Commit, Result
from minga.security.randomness.coin import Coin
from minga.security.verification.claims import PartClaim
from minga.security.verification.count_sketch import squares


@dataclass(frozen=True)
class Terms:
    """What all members of an attempt agree on before it begins: everything follows from earlier steps.

    `members` by rank, of which the `validators` contribute nothing; `division` says who aggregates which part.
    """

    run_id: str
    step: int
    attempt: int
    members: tuple[PeerId, ...]
    validators: frozenset[PeerId]
    division: EqualParts
    rules: Rules

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks of the members that send gradients."""
        return tuple(rank for rank, peer in enumerate(self.members) if peer not in self.validators)

    @property
    def coin(self) -> Coin:
        """The toss of this attempt."""
        return Coin(self.run_id, self.step, self.attempt)


@dataclass
class AttemptRecord:
    """What there is to know about an attempt when it is over; kept for members that recheck it later."""

    terms: Terms
    store: PartStore
    commits: dict[PeerId, Commit] = field(default_factory=dict)
    results: dict[PeerId, Result] = field(default_factory=dict)
    claims: dict[PeerId, Claims] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    squares: dict[int, float] = field(default_factory=dict)
    """Of the same aggregates, about the sum of the squares: from all of these follows the length of the gradient."""
    true_claims: dict[tuple[int, int], PartClaim] = field(default_factory=dict)
    """(owner's rank, part) -> what is true of bytes that are at hand, once this member computed it."""
    randomness: bytes = b""
    unheard: tuple[PeerId, ...] = ()
    """Of whom nothing was heard in the last phase."""
    _sound: dict[tuple[int, int], Bytes] = field(default_factory=dict, repr=False)
    """Parts that were looked through: all of a part is read for that, and up to three times in a step it is asked."""

    def note_sound(self, owner: int, parts: Mapping[int, Bytes]) -> None:
        """These parts of an owner, which are in the store, were looked through when they were encoded or aggregated."""
        self._sound.update({(owner, part): data for part, data in parts.items()})

    @property
    def vector(self) -> torch.Tensor:
        """The aggregate gradient."""
        return _floats(self.store.vector)  # each value was checked

    @property
    def about_squares(self) -> float | None:
        """About the sum of the squares of the aggregate gradient; None where an aggregate is missing."""
        return sum(self.squares.values()) if len(self.squares) == len(self.terms.division.parts) else None

    def take_value(self, part: int, data: Bytes) -> None:
        """Note an aggregate in `values`; what means nothing is missing there.

        The squares are needed in any case. Where their sum is finite no number is too large, and the numbers are not
        looked through besides.
        """
        values = _floats(data)
        about = squares(values)
        if not math.isfinite(about):
            try:
                values = value_from_bytes(data)
            except InvalidEncodingError:
                return
        self.values[part], self.squares[part] = values, about

    def row(self, owner: int, part: int, *, looks_through: bool = True) -> torch.Tensor:
        """A part as it came over the wire; who does not look through it says with `note_sound` if it was sound.

        Raises `InvalidEncodingError`.
        """
        data = self.store.parts[owner, part]
        is_sound = not looks_through or self._sound.get((owner, part)) is data
        row = self.terms.division.row(data, part, is_sound=is_sound)
        if looks_through:
            self._sound[owner, part] = data
        return row


def _floats(data: Bytes) -> torch.Tensor:
    return load(bytes_of(data, writable=False), torch.float32)
