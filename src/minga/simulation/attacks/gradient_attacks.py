"""The attack lab: hostile members of secure runs, which run the real code and change one thing.

Attackers know everything that is public, which is nearly all: since batches are public, they can compute what honest
members will send, and need no spies for the attacks that the literature calls omniscient. Until `from_step` they are
honest. Here are members that lie with numbers; for the others see `protocol_attacks.py` and `collusion.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Set
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import torch

from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Seeds, TrainingBackend
from minga.security.protocol.statements import Claims
from minga.security.verification.claims import PartClaim
from minga.security.verification.count_sketch import DEFAULT_DIRECTIONS
from minga.simulation.attacks.interface import Attack


@runtime_checkable
class LabelledBackend(TrainingBackend, Protocol):
    """Work on data with labels, for attackers who flip these."""

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """What `gradient` would give if the labels were wrong in a systematic way."""


class SignFlip(Attack):
    """Sends its own gradient times -`scale`."""

    changes = "gradient"
    scale = 1000.0

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Backwards, and far."""
        own = await work.gradient(step, seeds.own)
        return own * -self.scale


class OwnParts(SignFlip):
    """Does so only in the parts that attackers aggregate, whose bytes no honest member gets unasked."""

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """The right one in all parts that others may see."""
        sent, members = (await work.gradient(step, seeds.own)).clone(), len(seeds.of)
        division = EqualParts.equal(work.layout, members)
        for peer, start, stop in zip(sorted(seeds.of), division.starts, division.stops, strict=True):
            if peer in self.allies:
                sent[start:stop] *= -self.scale
        return sent


class RandomDirection(Attack):
    """All attackers send one random direction, `scale` times as long as a gradient."""

    changes = "gradient"
    scale = 1000.0

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """The same direction in each step and for each attacker."""
        own = await work.gradient(step, seeds.own)
        direction = torch.from_numpy(np.random.default_rng(666).standard_normal(own.numel())).float()
        return direction * (self.scale * float(own.norm() / direction.norm()))


class DelayedGradient(Attack):
    """Sends its gradients of `delay` steps ago."""

    changes = "gradient"

    def __init__(self, from_step: int = 0, allies: Set[PeerId] = frozenset(), delay: int = 100) -> None:
        super().__init__(from_step, allies)
        self._past: list[torch.Tensor] = []
        self._delay = delay

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Remembers all of them."""
        self.step = step
        self._past.append(await work.gradient(step, seeds.own))
        return self._past[max(0, len(self._past) - 1 - self._delay) if self.is_on else -1]


class InnerProduct(Attack):
    """Sends minus `epsilon` times the mean of the honest gradients (IPM)."""

    changes = "gradient"
    epsilon = 0.6

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Near the others, against them."""
        honest = await self.honest_gradients(work, step, seeds)
        return honest.mean(0) * -self.epsilon


class InnerProductSmall(InnerProduct):
    """The same, hardly noticeable."""

    epsilon = 0.1


class LittleIsEnough(Attack):
    """Sends mean - z * deviation of the honest gradients, z as large as a majority would still believe (ALIE)."""

    changes = "gradient"

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Within what noise explains."""
        honest = await self.honest_gradients(work, step, seeds)
        n, b = len(seeds.of), len(seeds.of) - len(honest)
        supporters = n // 2 + 1 - b
        z = statistics.NormalDist().inv_cdf((n - b - supporters) / (n - b))
        return honest.mean(0) - z * honest.std(0)


class LabelFlip(Attack):
    """Sends the gradient of wrong labels; `labelled` finds them where the work itself does not offer it."""

    changes = "gradient"
    labelled: Callable[[TrainingBackend], TrainingBackend] = staticmethod(lambda work: work)

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Of its own batch. Raises `TypeError` for work without labels."""
        work = self.labelled(work)
        if not isinstance(work, LabelledBackend):
            raise TypeError(f"{type(work).__name__} has no labels that could be flipped")
        return await work.flipped_gradient(step, seeds.own)


class WrongAggregate(Attack):
    """Shifts what it reduced by `shift` times the radius of clipping."""

    changes = "aggregate"
    shift = 1.0

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        """All elements alike."""
        on = record.terms.step >= self.from_step
        return (value + self.shift * clip / value.numel() ** 0.5 if on else value), clip


class WrongRadius(Attack):
    """Names a radius of clipping that is `factor` times the right one."""

    factor = 100.0

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        """The right value to it."""
        return value, clip * (self.factor if record.terms.step >= self.from_step else 1.0)


class LyingNorms(Attack):
    """Says that its parts are nearer to the aggregates than they are."""

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
        """Half of each norm."""
        return self.changed(claims) if record.terms.step >= self.from_step else claims

    def changed(self, claims: Claims) -> Claims:
        """The lie."""
        lies = tuple(c and msgspec.structs.replace(c, norm=c.norm / 2) for c in claims.claims)
        return msgspec.structs.replace(claims, claims=lies)


class LyingProjections(LyingNorms):
    """Says that its parts lie elsewhere than they do, as if all aggregates were wrong."""

    def changed(self, claims: Claims) -> Claims:
        """Each projection as long again as its part is far from the aggregate."""
        lies = tuple(
            c and msgspec.structs.replace(c, projections=tuple(s + c.norm for s in c.projections))
            for c in claims.claims
        )
        return msgspec.structs.replace(claims, claims=lies)


class WithheldPart(Attack):
    """Commits to its gradient, but lets nobody have it; for the usual number of projections."""

    def brings(self, part: int) -> bool:  # noqa: ARG002
        """To nobody."""
        return not self.is_on

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:  # noqa: ARG002
        """As if its parts were the aggregates."""
        if not self.is_on:
            return claims
        made_up = PartClaim((0.0,) * DEFAULT_DIRECTIONS, 0.0)
        return msgspec.structs.replace(claims, claims=tuple(claim or made_up for claim in claims.claims))
