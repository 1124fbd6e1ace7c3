"""The behaviour seam: how simulated peers are dishonest. There are two kinds.

Attack   a member of a run whose members check each other: the honest `Behaviour`, of which it changes one thing
Lie      a peer of any run: replaces a method of its own session, since honest code need not know that lies exist
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import ClassVar, Final, Literal

import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry
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


# ---- The registry: behaviours of dishonest peers by their names, for scenarios and benchmarks alike.
#
# Those of other packages are found by their entry points `minga.behaviours`.


BEHAVIOURS: Final[Registry[type[Attack] | type[Lie]]] = Registry(
    "minga.behaviours",
    "behaviour",
    {
        "false-rates": "minga.simulation.faults.driver:FalseRates",
        "false-state": "minga.simulation.faults.driver:FalseState",
        "sign-flip": "minga.simulation.attacks.gradient_attacks:SignFlip",
        "own-parts": "minga.simulation.attacks.gradient_attacks:OwnParts",
        "random-direction": "minga.simulation.attacks.gradient_attacks:RandomDirection",
        "label-flip": "minga.simulation.attacks.gradient_attacks:LabelFlip",
        "delayed": "minga.simulation.attacks.gradient_attacks:DelayedGradient",
        "ipm-0.1": "minga.simulation.attacks.gradient_attacks:InnerProductSmall",
        "ipm-0.6": "minga.simulation.attacks.gradient_attacks:InnerProduct",
        "alie": "minga.simulation.attacks.gradient_attacks:LittleIsEnough",
        "wrong-aggregate": "minga.simulation.attacks.gradient_attacks:WrongAggregate",
        "covered-aggregate": "minga.simulation.attacks.collusion:CoveredAggregate",
        "far-covered-aggregate": "minga.simulation.attacks.collusion:FarCoveredAggregate",
        "wrong-radius": "minga.simulation.attacks.gradient_attacks:WrongRadius",
        "lying-norms": "minga.simulation.attacks.gradient_attacks:LyingNorms",
        "lying-projections": "minga.simulation.attacks.gradient_attacks:LyingProjections",
        "silent-commit": "minga.simulation.attacks.protocol_attacks:SilentCommit",
        "silent-result": "minga.simulation.attacks.protocol_attacks:SilentResult",
        "withheld-reveal": "minga.simulation.attacks.protocol_attacks:WithheldReveal",
        "silent-claims": "minga.simulation.attacks.protocol_attacks:SilentClaims",
        "silent-confirm": "minga.simulation.attacks.protocol_attacks:SilentConfirm",
        "withheld-part": "minga.simulation.attacks.gradient_attacks:WithheldPart",
        "equivocating-commit": "minga.simulation.attacks.protocol_attacks:EquivocatingCommit",
        "equivocating-result": "minga.simulation.attacks.protocol_attacks:Equivocation",
        "equivocating-reveal": "minga.simulation.attacks.protocol_attacks:EquivocatingReveal",
        "equivocating-claims": "minga.simulation.attacks.protocol_attacks:EquivocatingClaims",
        "divisive-proof": "minga.simulation.attacks.collusion:DivisiveProof",
        "false-complaints": "minga.simulation.attacks.protocol_attacks:FalseComplaints",
        "moderate-complaints": "minga.simulation.attacks.protocol_attacks:ModerateComplaints",
        "false-accusation": "minga.simulation.attacks.protocol_attacks:FalseAccusation",
        "slander": "minga.simulation.attacks.collusion:Slander",
        "lying-judge": "minga.simulation.attacks.protocol_attacks:LyingJudge",
        "sybil": "minga.simulation.attacks.joining_attacks:Sybil",
        "withholding-sybil": "minga.simulation.attacks.joining_attacks:WithholdingSybil",
        "poisoned-donor": "minga.simulation.attacks.joining_attacks:PoisonedDonor",
        "lying-guide": "minga.simulation.attacks.joining_attacks:LyingGuide",
    },
)


def attack(name: str) -> type[Attack]:
    """The attack of that name. Raises `ConfigurationError` if there is none."""
    found = BEHAVIOURS.get(name)
    if not (isinstance(found, type) and issubclass(found, Attack)):
        raise ConfigurationError(f"behaviour: {name!r} is no attack on runs whose members check each other")
    return found


def lie(name: str) -> type[Lie]:
    """The lie of that name. Raises `ConfigurationError` if there is none."""
    found = BEHAVIOURS.get(name)
    if is_attack(name):
        raise ConfigurationError(f"behaviour: {name!r} is for [[attackers]], with from_step")
    if not (isinstance(found, type) and issubclass(found, Lie)):
        raise ConfigurationError(f"behaviour: {name!r} is neither an Attack nor a Lie")
    return found


def is_attack(name: str) -> bool:
    """Whether a behaviour is an attack; the other ones are lies. Raises `ConfigurationError` if there is none."""
    found = BEHAVIOURS.get(name)
    return isinstance(found, type) and issubclass(found, Attack)


def attacks() -> tuple[str, ...]:
    """The names of all attacks; imports every package that brings a behaviour."""
    return tuple(name for name in BEHAVIOURS.names() if is_attack(name))
