"""The behaviours of dishonest peers by their names, for scenarios and benchmarks alike.

Those of other packages are found by their entry points `minga.behaviours`.
"""

from __future__ import annotations

from typing import Final

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry
from minga.simulation.attacks.interface import Attack, Lie

BEHAVIOURS: Final[Registry[type[Attack] | type[Lie]]] = Registry(
    "minga.behaviours",
    "behaviour",
    {
        "false-rates": "minga.simulation.faults.lying_peers:FalseRates",
        "false-state": "minga.simulation.faults.lying_peers:FalseState",
        "sign-flip": "minga.simulation.attacks.gradient_attacks:SignFlip",
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
