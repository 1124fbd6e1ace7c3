"""What an attempt is about, and what is known of it when it is over."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.codecs.tensor_bytes import bytes_of, load
from minga.core.buffer_pool import Bytes
from minga.core.errors import ProtocolError
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.rules import Rules
from minga.security.protocol.statements import (
    Body,
    Claims,
    Commit,
    Confirm,
    Phase,
    Result,
    Revealed,
    Statement,
    read,
)
from minga.security.randomness.coin import Coin
from minga.security.verification.claims import PartClaim
from minga.security.verification.count_sketch import squares

_BODIES: Final[Mapping[Phase, type[Body]]] = {
    Phase.COMMIT: Commit,
    Phase.RESULT: Result,
    Phase.REVEAL: Revealed,
    Phase.CLAIMS: Claims,
    Phase.CONFIRM: Confirm,
    Phase.CHECK: Confirm,
}


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

    def understood(self, statement: Statement) -> Body | None:
        """What a member says in a phase of this attempt; None where it makes no sense, which counts as not said, as do
        the words of who is no member of this attempt any more.
        """
        if statement.author in self.members:
            with contextlib.suppress(ProtocolError):
                body = read(statement, _BODIES[statement.slot.phase])
                if self._is_sound(statement.author, body):
                    return body
        return None

    # ---- inner workings

    def _is_sound(self, peer: PeerId, body: Body) -> bool:
        """Whether it fits the terms: parts and claims from contributors, and an aggregate from who has a part."""
        rank, division = self.members.index(peer), self.division
        if isinstance(body, Commit):
            return (body.root is None) == (peer in self.validators or body.leaves)
        if isinstance(body, Result):
            aggregates = division.numel(rank) > 0
            if aggregates != (body.value is not None) or aggregates != (body.clip > 0.0):
                return False
            return all(owner in self.contributors for owner in body.silent)
        return not isinstance(body, Claims) or self._has_all(peer, body)

    def _has_all(self, peer: PeerId, body: Claims) -> bool:
        """A claim about each part whose aggregate the author could get, nothing from a validator."""
        parts, count = set(self.division.parts), self.rules.directions
        if not parts.issuperset(body.missing):
            return False
        if peer in self.validators:
            return not body.claims
        due = parts.difference(body.missing)
        if len(body.claims) != len(self.members):
            return False
        return all(
            (claim is not None and len(claim.projections) == count) if part in due else claim is None
            for part, claim in enumerate(body.claims)
        )


@dataclass
class AttemptRecord:
    """What there is to know about an attempt: its transcript, `said` and what that means, and the bytes at hand. It
    grows phase by phase, and is kept for members that recheck it later.
    """

    terms: Terms
    store: PartStore
    said: dict[Phase, dict[PeerId, Statement]] = field(default_factory=dict)
    """Of each phase that is over, what counts."""
    bodies: dict[Phase, dict[PeerId, Any]] = field(default_factory=dict)
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

    @property
    def commits(self) -> Mapping[PeerId, Commit]:
        """What was said in phase COMMIT; nothing before it is over."""
        return self.bodies.get(Phase.COMMIT, {})

    @property
    def results(self) -> Mapping[PeerId, Result]:
        """The same of phase RESULT."""
        return self.bodies.get(Phase.RESULT, {})

    @property
    def reveals(self) -> Mapping[PeerId, Revealed]:
        """The same of phase REVEAL."""
        return self.bodies.get(Phase.REVEAL, {})

    @property
    def claims(self) -> Mapping[PeerId, Claims]:
        """The same of phase CLAIMS."""
        return self.bodies.get(Phase.CLAIMS, {})

    @property
    def confirms(self) -> Mapping[PeerId, Confirm]:
        """The same of phase CONFIRM."""
        return self.bodies.get(Phase.CONFIRM, {})

    def hear(self, phase: Phase, said: Mapping[PeerId, Statement], bodies: Mapping[PeerId, Body]) -> None:
        """A phase is over, in which this counts, and means that."""
        self.said[phase], self.bodies[phase] = dict(said), dict(bodies)

    def toss(self) -> None:
        """The coin falls as was revealed."""
        self.randomness = self.terms.coin.outcome({peer: body.reveal for peer, body in self.reveals.items()})

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


def who_leaves(commits: Mapping[PeerId, Commit]) -> frozenset[PeerId]:
    """Members that say goodbye. More than half of the others go on without them, once most of all members, with them,
    were heard.

    An honest one says nothing else in that attempt to anybody. So of two groups that cannot hear each other, of which
    each has more than half of the members but for those whose goodbye it heard, no two can be without a common one.
    """
    return frozenset(peer for peer, body in commits.items() if body.leaves)
