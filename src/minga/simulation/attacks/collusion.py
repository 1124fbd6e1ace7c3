"""Attackers who act together: each covers what another does.

They share what they know by other ways than the swarm (here simply an object), which nobody can see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import msgspec
import torch

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import MakeBehaviour
from minga.security.protocol.statements import Body, Claims, Phase, Slot
from minga.security.verification.claims import claims as true_claims
from minga.security.verification.count_sketch import Directions
from minga.simulation.attacks.interface import Attack
from minga.simulation.attacks.protocol_attacks import FalseAccusation, LyingJudge


class Conspiracy:
    """What attackers told each other in the last attempt: who shifted which part, and all that were sent for it."""

    def __init__(self) -> None:
        self._of: tuple[int, int] = (-1, 0)
        self._shifted: dict[int, AttemptRecord] = {}

    def note(self, part: int, record: AttemptRecord) -> None:
        """The aggregator of a part shifted its result; `record` has what it got."""
        if self._of != (attempt := (record.terms.step, record.terms.attempt)):
            self._of, self._shifted = attempt, {}
        self._shifted[part] = record

    def shifted(self, record: AttemptRecord) -> dict[int, AttemptRecord]:
        """The aggregators' records of the parts that were shifted in the same attempt."""
        return self._shifted if self._of == (record.terms.step, record.terms.attempt) else {}


class CoveredAggregate(Attack):
    """Shifts what it reduced, while an ally makes up projections so that their sum is zero nevertheless.

    The only one who could see that these are false, before validators do, is the aggregator itself. `shift` is in
    radii of clipping.
    """

    changes = "aggregate"
    shift = 1.0

    def __init__(self, from_step: int, allies: Set[PeerId], conspiracy: Conspiracy) -> None:
        super().__init__(from_step, allies)
        self._conspiracy = conspiracy

    @classmethod
    def begin(cls, from_step: int) -> MakeBehaviour:
        """All conspire."""
        conspiracy = Conspiracy()
        return lambda allies: cls(from_step, allies, conspiracy)

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        """Shifted, if there is an ally to cover it."""
        part = record.terms.members.index(self.me)
        if record.terms.step < self.from_step or self._helper(part, record) is None:
            return value, clip
        self._conspiracy.note(part, record)
        return value + self.shift * clip / value.numel() ** 0.5, clip

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
        """False about the parts of those whom this member helps, by what the true sum is."""
        lies = list(claims.claims)
        for part, known in self._conspiracy.shifted(record).items():
            own = claims.claims[part] if claims.claims else None
            if own is not None and self._helper(part, record) == self.me:
                sums = _sums(part, known, record, len(own.projections))
                made_up = tuple(s - excess for s, excess in zip(own.projections, sums, strict=True))
                lies[part] = msgspec.structs.replace(own, projections=made_up)
        return msgspec.structs.replace(claims, claims=tuple(lies))

    def _helper(self, part: int, record: AttemptRecord) -> PeerId | None:
        """The next ally after the aggregator of a part that contributes to the step."""
        members, count = record.terms.members, len(record.terms.members)
        ranks = [(part + 1 + offset) % count for offset in range(count - 1)]
        return next((members[r] for r in ranks if r in record.terms.contributors and members[r] in self.allies), None)


class FarCoveredAggregate(CoveredAggregate):
    """The same, so far that the norms of the others show it."""

    shift = 5.0


class Slander(FalseAccusation, LyingJudge):
    """Accuses honest members, and finds all guilty whom its allies accuse."""


class DivisiveProof(Attack):
    """Lets a single member have the proof that it equivocated, and then makes half of the others look for it."""

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        """Two results to one member; to half of the members, that it heard other results than they did."""
        if slot.step < self.from_step or slot.phase not in (Phase.RESULT, Phase.REVEAL):
            return [(body, everybody)]
        honest = [peer for peer in everybody if peer not in self.allies]
        if slot.phase is Phase.RESULT:
            return [(body, everybody), (msgspec.structs.replace(body, coin=bytes(32)), honest[:1])]
        rest = [peer for peer in everybody if peer not in honest[::2]]
        return [(body, rest), (msgspec.structs.replace(body, seen=bytes(32)), honest[::2])]


def _sums(part: int, known: AttemptRecord, record: AttemptRecord, count: int) -> list[float]:
    """What all true projections of a part add up to."""
    terms, aggregator = record.terms, record.terms.members[part]
    directions = Directions(record.randomness, count, terms.division.starts[part])
    rows = [known.row(owner, part).numpy() for owner in terms.contributors]
    true = true_claims(rows, record.values[part].numpy(), record.results[aggregator].clip, directions)
    told = [claim.projections for claim in true if claim is not None]
    if len(told) < len(rows):
        raise ValueError("of a contribution that is too far away nothing is true: it has no part in a sum")
    return [math.fsum(column) for column in zip(*told, strict=True)]
