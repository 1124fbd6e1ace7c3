"""The behaviour seam: how simulated peers are dishonest. There are two kinds.

Attack   a member of a run whose members check each other: the honest `Behaviour`, of which it changes one thing
Lie      a peer of any run: replaces a method of its own session, since honest code need not know that lies exist
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import ClassVar, Literal

import torch

from minga.network.interface import PeerId
from minga.security.protocol.behaviour import Behaviour, MakeBehaviour, Seeds, TrainingBackend
from minga.training.session import Session


class Attack(Behaviour):
    """Honest before `from_step`; `allies` (all attackers by id, also those that come later) matter where they act
    together.
    """

    changes: ClassVar[Literal["gradient", "aggregate", "protocol"]] = "protocol"
    """The gradient that it sends, the aggregate that it hands out, or the protocol: then nothing of the kind exists in
    training without defence.
    """
    who_comes: ClassVar[Literal["nobody", "attackers", "newcomer"]] = "nobody"
    """At the step at which it begins: everybody is there from the start, or the attackers come then, or one honest peer
    comes to meet them.
    """

    def __init__(self, from_step: int = 0, allies: Set[PeerId] = frozenset()) -> None:
        self.from_step, self.allies = from_step, allies
        self.step = 0
        self.me = PeerId("")
        """Its own id, from the first step on."""

    @classmethod
    def begin(cls, from_step: int) -> MakeBehaviour:
        """What makes the behaviour of each attacker of one run; what they share is made here."""
        return lambda allies: cls(from_step, allies)

    @property
    def is_on(self) -> bool:
        """Whether it attacks in the present step."""
        return self.step >= self.from_step

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Notes the step; hostile from the right one on."""
        self.step, self.me = step, seeds.me
        if not self.is_on:
            return await work.gradient(step, seeds.own)
        return await self.hostile_gradient(work, step, seeds)

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """What it sends while it attacks; the true gradient, if what it changes is something else."""
        return await work.gradient(step, seeds.own)

    async def honest_gradients(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """What those send who are no allies, float32 [members, numel]."""
        return torch.stack(
            [await work.gradient(step, seed) for peer, seed in seeds.of.items() if peer not in self.allies]
        )


class Lie(ABC):
    """One way in which a peer can begin to lie at any time, and become honest again."""

    @abstractmethod
    def begin(self, session: Session) -> Callable[[], None]:
        """Let the peer of this session lie from now on; what is returned undoes that."""
