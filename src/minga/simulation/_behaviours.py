"""The behaviours of dishonest peers by their names, for scenarios and benchmarks alike.

Those of other packages are found by their entry points `minga.behaviours`.
"""

from __future__ import annotations

from typing import Final

from minga.core._errors import ConfigurationError
from minga.core._plugins import Registry
from minga.simulation._behaviour_interface import Attack, Lie

BEHAVIOURS: Final[Registry[type[Attack] | type[Lie]]] = Registry(
    "minga.behaviours",
    "behaviour",
    {
        "false-rates": "minga.simulation._liars:FalseRates",
        "false-state": "minga.simulation._liars:FalseState",
        "sign-flip": "minga.simulation._attacks:SignFlip",
        "random-direction": "minga.simulation._attacks:RandomDirection",
        "label-flip": "minga.simulation._attacks:LabelFlip",
        "delayed": "minga.simulation._attacks:Delayed",
        "ipm-0.1": "minga.simulation._attacks:InnerProductSmall",
        "ipm-0.6": "minga.simulation._attacks:InnerProduct",
        "alie": "minga.simulation._attacks:LittleIsEnough",
        "wrong-aggregate": "minga.simulation._attacks:WrongAggregate",
        "covered-aggregate": "minga.simulation._collusion:CoveredAggregate",
        "far-covered-aggregate": "minga.simulation._collusion:FarCoveredAggregate",
        "wrong-radius": "minga.simulation._attacks:WrongRadius",
        "lying-norms": "minga.simulation._attacks:LyingNorms",
        "lying-projections": "minga.simulation._attacks:LyingProjections",
        "silent-commit": "minga.simulation._hostile_words:SilentCommit",
        "silent-result": "minga.simulation._hostile_words:SilentResult",
        "withheld-reveal": "minga.simulation._hostile_words:WithheldReveal",
        "silent-claims": "minga.simulation._hostile_words:SilentClaims",
        "silent-confirm": "minga.simulation._hostile_words:SilentConfirm",
        "withheld-part": "minga.simulation._attacks:WithheldPart",
        "equivocating-commit": "minga.simulation._hostile_words:EquivocatingCommit",
        "equivocating-result": "minga.simulation._hostile_words:Equivocation",
        "equivocating-reveal": "minga.simulation._hostile_words:EquivocatingReveal",
        "equivocating-claims": "minga.simulation._hostile_words:EquivocatingClaims",
        "divisive-proof": "minga.simulation._collusion:DivisiveProof",
        "false-accusation": "minga.simulation._hostile_words:FalseAccusation",
        "slander": "minga.simulation._collusion:Slander",
        "lying-judge": "minga.simulation._hostile_words:LyingJudge",
        "sybil": "minga.simulation._intruders:Sybil",
        "withholding-sybil": "minga.simulation._intruders:WithholdingSybil",
        "poisoned-donor": "minga.simulation._intruders:PoisonedDonor",
        "lying-guide": "minga.simulation._intruders:LyingGuide",
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
