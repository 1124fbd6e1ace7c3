"""Who checks whom, drawn from the random string of all members.

A validator gives up one step of training to compute again what its target sent (BTARD section 4.9). The draw comes
after the commitment to the gradients, so a target cannot know in advance that it will be looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from minga.network.interface import PeerId
from minga.security.randomness.coin import UniformIntegers, derive

PEERS_PER_VALIDATOR: Final = 16
_MEMBERS_PER_VALIDATOR_AT_LEAST: Final = 4


@dataclass(frozen=True, slots=True)
class Validation:
    """`validator` computes again what `target` did in the step before."""

    validator: PeerId
    target: PeerId


def validator_count(members: int, candidates: int = 0, *, peers_per_validator: int = PEERS_PER_VALIDATOR) -> int:
    """Return how many of `members` validate in one step: one for each `peers_per_validator` members and candidates.

    That keeps the time until an attacker is caught independent of their number; candidates count because they are
    targets too, and a crowd of them shall not draw the validators away from the members. At least one, and no more
    than a quarter of the members, rounded up, so that most of them train; none where a member is alone.
    Raises `ValueError` for negative numbers or no peers per validator.
    """
    if members < 0 or candidates < 0 or peers_per_validator < 1:
        raise ValueError(
            f"{members} members, {candidates} candidates and {peers_per_validator} peers for each validator: "
            "the first two must not be negative, the last must be positive"
        )
    if members < 2:
        return 0
    wanted = -(-(members + candidates) // peers_per_validator)
    return min(wanted, -(-members // _MEMBERS_PER_VALIDATOR_AT_LEAST))


def draw_validations(
    randomness: bytes, members: Collection[PeerId], candidates: Collection[PeerId], count: int
) -> tuple[Validation, ...]:
    """Return `count` pairs of a validator and a target, all different peers; the same for the same sets of peers.

    Every set of members is equally likely to validate; targets are drawn evenly from the other members and all
    candidates, so that a candidate is looked at as often as a member, and a little more often since it never
    validates. Raises `ValueError` if a peer is both, or if there are not enough peers for so many pairs.
    """
    if set(members) & set(candidates):
        raise ValueError("a peer is either a member or a candidate")
    if not 0 <= count <= len(members) or 2 * count > len(members) + len(candidates):
        raise ValueError(f"{len(members)} members and {len(candidates)} candidates do not give {count} pairs")
    integers = UniformIntegers(derive(randomness, "validation"))
    validators = integers.sample(sorted(members), count)
    others = sorted((set(members) - set(validators)) | set(candidates))
    targets = integers.sample(others, count)
    return tuple(Validation(validator, target) for validator, target in zip(validators, targets, strict=True))
