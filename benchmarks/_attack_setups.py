"""The attacks by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minga.simulation import _attacks, _collusion, _hostile_words, _intruders
from minga.simulation._secure_swarm import MakeConduct


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


SETUPS = {
    "sign_flip": Setup(_each(_attacks.SignFlip), "gradient"),
    "random_direction": Setup(_each(_attacks.RandomDirection), "gradient"),
    "label_flip": Setup(_each(_attacks.LabelFlip), "gradient"),
    "delayed": Setup(_each(_attacks.Delayed), "gradient"),
    "ipm_0.1": Setup(_each(_attacks.InnerProductSmall), "gradient"),
    "ipm_0.6": Setup(_each(_attacks.InnerProduct), "gradient"),
    "alie": Setup(_each(_attacks.LittleIsEnough), "gradient"),
    "wrong_aggregate": Setup(_each(_attacks.WrongAggregate), "aggregate"),
    "covered_aggregate": Setup(_together(_collusion.CoveredAggregate), "aggregate"),
    "far_covered_aggregate": Setup(_together(_collusion.FarCoveredAggregate), "aggregate"),
    "wrong_radius": Setup(_each(_attacks.WrongRadius), "protocol"),
    "lying_norms": Setup(_each(_attacks.LyingNorms), "protocol"),
    "lying_projections": Setup(_each(_attacks.LyingProjections), "protocol"),
    "silent_commit": Setup(_each(_hostile_words.SilentCommit), "protocol"),
    "silent_result": Setup(_each(_hostile_words.SilentResult), "protocol"),
    "withheld_reveal": Setup(_each(_hostile_words.WithheldReveal), "protocol"),
    "silent_claims": Setup(_each(_hostile_words.SilentClaims), "protocol"),
    "silent_confirm": Setup(_each(_hostile_words.SilentConfirm), "protocol"),
    "withheld_part": Setup(_each(_attacks.WithheldPart), "protocol"),
    "equivocating_commit": Setup(_each(_hostile_words.EquivocatingCommit), "protocol"),
    "equivocating_result": Setup(_each(_hostile_words.Equivocation), "protocol"),
    "equivocating_reveal": Setup(_each(_hostile_words.EquivocatingReveal), "protocol"),
    "equivocating_claims": Setup(_each(_hostile_words.EquivocatingClaims), "protocol"),
    "divisive_proof": Setup(_each(_collusion.DivisiveProof), "protocol"),
    "false_accusation": Setup(_each(_hostile_words.FalseAccusation), "protocol"),
    "slander": Setup(_each(_collusion.Slander), "protocol"),
    "lying_judge": Setup(_each(_hostile_words.LyingJudge), "protocol"),
    "sybil": Setup(_with_one_machine(_intruders.Sybil), "protocol", "attackers"),
    "withholding_sybil": Setup(_with_one_machine(_intruders.WithholdingSybil), "protocol", "attackers"),
    "poisoned_donor": Setup(_each(_intruders.PoisonedDonor), "protocol", "newcomer"),
    "lying_guide": Setup(_each(_intruders.LyingGuide), "protocol", "newcomer"),
}
