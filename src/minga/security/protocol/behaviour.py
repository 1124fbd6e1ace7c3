"""What a member does of its own accord. This is honest behaviour; the attack lab changes one thing at a time.

Everything else in this room is what the protocol makes of it, on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.statements import Accusation, Body, Candidacy, Claims, Result, Revealed, Slot, StateClaim

KEPT_STEPS = 3
"""Steps that members can be asked about, and so the states that `TrainingBackend` has to keep."""


class TrainingBackend(Protocol):
    """What training has to offer to the protocol; every method must give the same on all machines of honest members.

    Only gradients may differ, by what kinds of devices round differently; what is too much for that is judged by the
    thresholds of `minga.security.verification.gradient_match`.
    """

    layout: VectorLayout

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """The mean gradient (flat float32) of the public batch of `seed` at the parameters before `step`: the present
        one, or one of the `KEPT_STEPS` steps before it. Nobody changes it any more: members are shown it as it is for
        as long as they may ask about the step.
        """

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """Take step `step` with the aggregate gradient."""

    async def digest(self) -> bytes:
        """32 bytes that are equal for equal states."""

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """Become what most members have before `step`, of the given `digest`, which the `donors` say they have.

        Any of them may lie about it or go away. Raises `RemoteError` if none of them has it any more.
        """


@dataclass(frozen=True)
class Seeds:
    """The public seeds of all members' batches in a step."""

    me: PeerId
    of: Mapping[PeerId, bytes]

    @property
    def own(self) -> bytes:
        """That of this member."""
        return self.of[self.me]


class Behaviour:
    """Honest."""

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """What this member contributes to a step."""
        return await work.gradient(step, seeds.own)

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:  # noqa: ARG002
        """What it tells whom in a slot."""
        return [(body, everybody)]

    def candidacy(
        self,
        slot: Slot,  # noqa: ARG002
        candidacy: Candidacy,
        members: Sequence[PeerId],
    ) -> Sequence[tuple[Candidacy, Sequence[PeerId]]]:
        """What it tells which members as an applicant or candidate."""
        return [(candidacy, members)]

    def stands(self, place: StateClaim) -> StateClaim:
        """Where it says to newcomers that it stands."""
        return place

    def submits(self) -> bool:
        """Whether members that recheck it as a candidate can have its gradient."""
        return True

    def result(self, result: Result) -> Result | None:
        """What it says of its aggregate; None to keep silent."""
        return result

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:  # noqa: ARG002
        """The aggregate that it hands out, and the radius that it names; `record` has the parts."""
        return value, clip

    def reveal(self, reveal: Revealed) -> Revealed | None:
        """Its secret of the coin."""
        return reveal

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:  # noqa: ARG002
        """What it says of its own parts; `record` has the aggregates, and the coin."""
        return claims

    def accusations(self, found: tuple[Accusation, ...]) -> tuple[Accusation, ...]:
        """Whom it accuses, of what it `found`."""
        return found

    def judgement(self, accusation: Accusation, *, guilty: bool) -> bool:  # noqa: ARG002
        """What it says of another member's accusation."""
        return guilty

    def brings(self, part: int) -> bool:  # noqa: ARG002
        """Whether an aggregator can have its part."""
        return True


MakeBehaviour = Callable[[Set[PeerId]], Behaviour]
"""Makes the behaviour of one hostile member, which is told its allies."""
