"""The attack lab: hostile members of secure runs, which run the real code and change one thing.

Attackers know everything that is public, which is nearly all: since batches are public, they can compute what honest
members will send, and need no spies for the attacks that the literature calls omniscient. Until `from_step` they are
honest.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from minga.network._interface import PeerId
from minga.security._conduct import Conduct, Seeds, Work
from minga.security._wire import Accusation, Body, Charge, Claims, Phase, Result, Revealed, Slot


class Attack(Conduct):
    """Honest before `from_step`; `allies` (all attackers by id) matter where they act together."""

    def __init__(self, from_step: int = 0, allies: frozenset[PeerId] = frozenset()) -> None:
        self.from_step, self.allies = from_step, allies
        self.step = 0

    @property
    def is_on(self) -> bool:
        """Whether it attacks in the present step."""
        return self.step >= self.from_step

    async def gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """Notes the step; hostile from the right one on."""
        self.step = step
        if not self.is_on:
            return await work.gradient(step, seeds.own)
        return await self.hostile_gradient(work, step, seeds)

    async def hostile_gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """What it sends while it attacks; the true gradient, if what it changes is something else."""
        return await work.gradient(step, seeds.own)

    async def honest_gradients(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """What those send who are no allies, float32 [members, numel]."""
        return torch.stack(
            [await work.gradient(step, seed) for peer, seed in seeds.of.items() if peer not in self.allies]
        )


class SignFlip(Attack):
    """Sends its own gradient times -`scale`."""

    scale = 1000.0

    async def hostile_gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """Backwards, and far."""
        own = await work.gradient(step, seeds.own)
        return own * -self.scale


class RandomDirection(Attack):
    """All attackers send one random direction, `scale` times as long as a gradient."""

    scale = 1000.0

    async def hostile_gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """The same direction in each step and for each attacker."""
        own = await work.gradient(step, seeds.own)
        direction = torch.from_numpy(np.random.default_rng(666).standard_normal(own.numel())).float()
        return direction * (self.scale * float(own.norm() / direction.norm()))


class Delayed(Attack):
    """Sends its gradients of `delay` steps ago."""

    def __init__(self, from_step: int = 0, allies: frozenset[PeerId] = frozenset(), delay: int = 100) -> None:
        super().__init__(from_step, allies)
        self._past: list[torch.Tensor] = []
        self._delay = delay

    async def gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """Remembers all of them."""
        self.step = step
        self._past.append(await work.gradient(step, seeds.own))
        return self._past[max(0, len(self._past) - 1 - self._delay) if self.is_on else -1]


class InnerProduct(Attack):
    """Sends minus `epsilon` times the mean of the honest gradients (IPM)."""

    epsilon = 0.6

    async def hostile_gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """Near the others, against them."""
        honest = await self.honest_gradients(work, step, seeds)
        return honest.mean(0) * -self.epsilon


class InnerProductSmall(InnerProduct):
    """The same, hardly noticeable."""

    epsilon = 0.1


class LittleIsEnough(Attack):
    """Sends mean - z * deviation of the honest gradients, z as large as a majority would still believe (ALIE)."""

    async def hostile_gradient(self, work: Work, step: int, seeds: Seeds) -> torch.Tensor:
        """Within what noise explains."""
        honest = await self.honest_gradients(work, step, seeds)
        n, b = len(seeds.of), len(seeds.of) - len(honest)
        supporters = n // 2 + 1 - b
        z = statistics.NormalDist().inv_cdf((n - b - supporters) / (n - b))
        return honest.mean(0) - z * honest.std(0)


class WrongAggregate(Attack):
    """Shifts what it reduced by `shift` times the radius of clipping."""

    shift = 1.0

    def value(self, value: torch.Tensor, clip: float) -> tuple[torch.Tensor, float]:
        """All elements alike."""
        return (value + self.shift * clip / value.numel() ** 0.5 if self.is_on else value), clip


class LyingClaims(Attack):
    """Says that its parts are nearer to the aggregates than they are."""

    def claims(self, claims: Claims) -> Claims | None:
        """Half of each norm."""
        if not self.is_on:
            return claims
        changed = tuple(c and msgspec.structs.replace(c, norm=c.norm / 2) for c in claims.claims)
        return msgspec.structs.replace(claims, claims=changed)


class WithheldReveal(Attack):
    """Does not reveal its secret of the coin."""

    def reveal(self, reveal: Revealed) -> Revealed | None:
        """Nothing."""
        return None if self.is_on else reveal


class SilentResult(Attack):
    """Says nothing of what it reduced."""

    def result(self, result: Result) -> Result | None:
        """Nothing."""
        return None if self.is_on else result


class SilentClaims(Attack):
    """Claims nothing."""

    def claims(self, claims: Claims) -> Claims | None:
        """Nothing."""
        return None if self.is_on else claims


class WithheldPart(Attack):
    """Commits to its gradient, but lets nobody have it."""

    def brings(self, part: int) -> bool:  # noqa: ARG002
        """To nobody."""
        return not self.is_on


class FalseAccusation(Attack):
    """Accuses an honest member each time."""

    def __init__(self, from_step: int = 0, allies: frozenset[PeerId] = frozenset(), victim: str = "") -> None:
        super().__init__(from_step, allies)
        self.victim = victim

    def accusations(self, found: tuple[Accusation, ...]) -> tuple[Accusation, ...]:
        """Of a wrong gradient in the last step."""
        if not self.is_on or self.step == 0:
            return found
        return (*found, Accusation(self.step - 1, self.victim, Charge.GRADIENT))


class LyingJudge(Attack):
    """Says the contrary of what it found about any accusation."""

    def judgement(self, accusation: Accusation, *, guilty: bool) -> bool:  # noqa: ARG002
        """The contrary."""
        return guilty != self.is_on


class Equivocation(Attack):
    """Tells half of the members another coin commitment than the others."""

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        """Two different results."""
        if not self.is_on or slot.phase is not Phase.RESULT or not isinstance(body, Result):
            return [(body, everybody)]
        other = msgspec.structs.replace(body, coin=bytes(32))
        return [(body, everybody[::2]), (other, everybody[1::2])]
