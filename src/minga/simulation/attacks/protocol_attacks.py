"""Attackers who do nothing wrong with numbers, but with words: they keep silent, say different things to different
members, and accuse the innocent.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

import msgspec
import torch

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Seeds, TrainingBackend
from minga.security.protocol.statements import Accusation, Body, Charge, Claims, Phase, Result, Slot
from minga.security.randomness.coin import Reveal
from minga.simulation.attacks.interface import Attack


class Silent(Attack):
    """Says nothing in one phase."""

    phase: ClassVar[Phase]

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        """Nothing to anybody."""
        is_silent = slot.phase is self.phase and slot.step >= self.from_step
        return [] if is_silent else [(body, everybody)]


class SilentCommit(Silent):
    """Does not commit itself to anything, as if it were away."""

    phase = Phase.COMMIT


class SilentResult(Silent):
    """Says nothing of what it reduced."""

    phase = Phase.RESULT


class WithheldReveal(Silent):
    """Does not reveal its secret of the coin."""

    phase = Phase.REVEAL


class SilentClaims(Silent):
    """Claims nothing."""

    phase = Phase.CLAIMS


class SilentConfirm(Silent):
    """Does not say that it heard the same as the others."""

    phase = Phase.CONFIRM


class Equivocation(Attack):
    """Tells every other member another coin commitment than the rest."""

    phase: ClassVar[Phase] = Phase.RESULT

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        """Two different bodies, in one phase."""
        if slot.step < self.from_step or slot.phase is not self.phase:
            return [(body, everybody)]
        return [(body, everybody[::2]), (self.other(body), everybody[1::2])]

    def other(self, body: Body) -> Body:
        """What the rest hears."""
        return msgspec.structs.replace(body, coin=bytes(32))


class EquivocatingCommit(Equivocation):
    """Tells every other member that it stands elsewhere than the rest."""

    phase = Phase.COMMIT

    def other(self, body: Body) -> Body:
        """In another state."""
        return msgspec.structs.replace(body, state=bytes(32))


class EquivocatingReveal(Equivocation):
    """Opens its commitment to every other member only."""

    phase = Phase.REVEAL

    def other(self, body: Body) -> Body:
        """With the wrong secret."""
        return msgspec.structs.replace(body, reveal=Reveal(bytes(32), bytes(32)))


class EquivocatingClaims(Equivocation):
    """Makes other claims to every other member than to the rest."""

    phase = Phase.CLAIMS

    def other(self, body: Body) -> Body:
        """Norms that are far too large."""
        claims = body.claims if isinstance(body, Claims) else ()
        lies = tuple(c and msgspec.structs.replace(c, norm=c.norm * 100) for c in claims)
        return msgspec.structs.replace(body, claims=lies)


class FalseComplaints(Attack):
    """Says that the parts of others did not come, of as many as `told_of` the members."""

    told_of = 1.0

    def __init__(self, from_step: int = 0, allies: Set[PeerId] = frozenset()) -> None:
        super().__init__(from_step, allies)
        self._record: AttemptRecord | None = None

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        """The right one; notes who contributes."""
        self._record = record
        return value, clip

    def result(self, result: Result) -> Result | None:
        """With complaints about honest members first."""
        if self._record is None or self._record.terms.step < self.from_step or result.value is None:
            return result
        members, contributors = self._record.terms.members, self._record.terms.contributors
        others = sorted((rank for rank in contributors if members[rank] != self.me), key=self._is_ally)
        return msgspec.structs.replace(result, silent=tuple(others[: int(self.told_of * len(members))]))

    def _is_ally(self, rank: int) -> bool:
        return self._record is not None and self._record.terms.members[rank] in self.allies


class ModerateComplaints(FalseComplaints):
    """Says so of half of the members, as a member might that others do keep waiting."""

    told_of = 0.5


class FalseAccusation(Attack):
    """Accuses an honest member each time, of a wrong gradient in the last step."""

    def __init__(self, from_step: int = 0, allies: Set[PeerId] = frozenset()) -> None:
        super().__init__(from_step, allies)
        self._victim: PeerId | None = None

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Picks a member by the seeds of the step."""
        self._victim = min((peer for peer in seeds.of if peer not in self.allies), key=lambda peer: seeds.of[peer])
        return await super().gradient(work, step, seeds)

    def accusations(self, found: tuple[Accusation, ...]) -> tuple[Accusation, ...]:
        """One more than it found."""
        if not self.is_on or self.step == 0 or self._victim is None:
            return found
        return (*found, Accusation(self.step - 1, self._victim, Charge.GRADIENT))


class LyingJudge(Attack):
    """Says the contrary of what it found about any accusation."""

    def judgement(self, accusation: Accusation, *, guilty: bool) -> bool:  # noqa: ARG002
        """The contrary."""
        return guilty != self.is_on
