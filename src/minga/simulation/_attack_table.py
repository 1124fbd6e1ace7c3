"""The attacks of secure runs by their names, for scenarios and benchmarks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from minga.security._conduct import MakeConduct
from minga.simulation import _attacks, _collusion, _hostile_words, _intruders


@dataclass(frozen=True)
class Setup:
    """One attack. `make` gives, from the step at which it begins, what makes the conduct of each attacker of one run.

    What it changes: the `gradient` that attackers send, the `aggregate` that they hand out, or the `protocol`: then
    nothing of the kind exists in training without defence.
    """

    make: Callable[[int], MakeConduct]
    changes: Literal["gradient", "aggregate", "protocol"]
    who_comes: Literal["nobody", "attackers", "newcomer"] = "nobody"
    """At the step at which it begins: everybody is there from the start, or the attackers come then, or one honest peer
    comes to meet them.
    """


def _each(attack: type[_attacks.Attack]) -> Callable[[int], MakeConduct]:
    return lambda from_step: lambda allies: attack(from_step, allies)


def _together(attack: type[_collusion.CoveredAggregate]) -> Callable[[int], MakeConduct]:
    def make(from_step: int) -> MakeConduct:
        conspiracy = _collusion.Conspiracy()
        return lambda allies: attack(from_step, allies, conspiracy)

    return make


def _with_one_machine(attack: type[_intruders.Sybil]) -> Callable[[int], MakeConduct]:
    def make(_: int) -> MakeConduct:
        machine = _intruders.Machine()
        return lambda _: attack(machine)

    return make


ATTACKS: Final[Mapping[str, Setup]] = {
    "sign-flip": Setup(_each(_attacks.SignFlip), "gradient"),
    "random-direction": Setup(_each(_attacks.RandomDirection), "gradient"),
    "label-flip": Setup(_each(_attacks.LabelFlip), "gradient"),
    "delayed": Setup(_each(_attacks.Delayed), "gradient"),
    "ipm-0.1": Setup(_each(_attacks.InnerProductSmall), "gradient"),
    "ipm-0.6": Setup(_each(_attacks.InnerProduct), "gradient"),
    "alie": Setup(_each(_attacks.LittleIsEnough), "gradient"),
    "wrong-aggregate": Setup(_each(_attacks.WrongAggregate), "aggregate"),
    "covered-aggregate": Setup(_together(_collusion.CoveredAggregate), "aggregate"),
    "far-covered-aggregate": Setup(_together(_collusion.FarCoveredAggregate), "aggregate"),
    "wrong-radius": Setup(_each(_attacks.WrongRadius), "protocol"),
    "lying-norms": Setup(_each(_attacks.LyingNorms), "protocol"),
    "lying-projections": Setup(_each(_attacks.LyingProjections), "protocol"),
    "silent-commit": Setup(_each(_hostile_words.SilentCommit), "protocol"),
    "silent-result": Setup(_each(_hostile_words.SilentResult), "protocol"),
    "withheld-reveal": Setup(_each(_hostile_words.WithheldReveal), "protocol"),
    "silent-claims": Setup(_each(_hostile_words.SilentClaims), "protocol"),
    "silent-confirm": Setup(_each(_hostile_words.SilentConfirm), "protocol"),
    "withheld-part": Setup(_each(_attacks.WithheldPart), "protocol"),
    "equivocating-commit": Setup(_each(_hostile_words.EquivocatingCommit), "protocol"),
    "equivocating-result": Setup(_each(_hostile_words.Equivocation), "protocol"),
    "equivocating-reveal": Setup(_each(_hostile_words.EquivocatingReveal), "protocol"),
    "equivocating-claims": Setup(_each(_hostile_words.EquivocatingClaims), "protocol"),
    "divisive-proof": Setup(_each(_collusion.DivisiveProof), "protocol"),
    "false-accusation": Setup(_each(_hostile_words.FalseAccusation), "protocol"),
    "slander": Setup(_each(_collusion.Slander), "protocol"),
    "lying-judge": Setup(_each(_hostile_words.LyingJudge), "protocol"),
    "sybil": Setup(_with_one_machine(_intruders.Sybil), "protocol", "attackers"),
    "withholding-sybil": Setup(_with_one_machine(_intruders.WithholdingSybil), "protocol", "attackers"),
    "poisoned-donor": Setup(_each(_intruders.PoisonedDonor), "protocol", "newcomer"),
    "lying-guide": Setup(_each(_intruders.LyingGuide), "protocol", "newcomer"),
}
