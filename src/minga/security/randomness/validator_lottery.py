"""Who checks whom, drawn from the random string of all members, and how long attackers last who are caught by that.

A validator gives up one step of training to compute again what its target sent (BTARD section 4.9). The draw comes
after the commitment to the gradients, so a target cannot know in advance that it will be looked at.
"""

from __future__ import annotations

import math
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


# ---- How long attackers last who cheat in every step and are caught by validators alone.
#
# In a step, m of the n peers validate and m others are targets, in pairs. An attacker is banned when an honest
# validator is paired with it; attackers who validate say nothing. With b attackers among n peers, the number h of
# honest validators is hypergeometric: m draws from n - b honest ones and b others. The targets of these h are a random
# choice from the n - m who do not validate, of whom b - (m - h) are attackers: so the number k that is banned is
# hypergeometric again. The banned leave, which makes a Markov chain over b with n - b fixed; its mean comes from the
# recurrence E(b) = (1 + Σ_{k>0} p_k E(b - k)) / (1 - p_0), its quantiles from following the distribution step by step.


def mean_steps_to_ban_all(peers: int, attackers: int, validators: int) -> float:
    """Return the expected number of steps until none of `attackers` among `peers` is left.

    The number of validators stays as it is while the peers become fewer, but never exceeds half of them.
    Raises `ValueError` unless there are honest peers and at least one validator.
    """
    chain = _chain(peers, attackers, validators)
    means = [0.0]
    for b in range(1, attackers + 1):
        bans = chain[b]
        means.append((1.0 + sum(bans[k] * means[b - k] for k in range(1, len(bans)))) / (1.0 - bans[0]))
    return means[attackers]


def steps_to_ban_all(peers: int, attackers: int, validators: int, probability: float = 0.95) -> int:
    """Return the least number of steps after which all of `attackers` are gone with at least `probability`.

    Raises `ValueError` as `mean_steps_to_ban_all` does, or unless 0 < `probability` < 1.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"a probability between 0 and 1 is needed, not {probability}")
    chain = _chain(peers, attackers, validators)
    left = [0.0] * attackers + [1.0]  # left[b]: the probability that b attackers are left
    steps = 0
    while left[0] < probability:
        after = [0.0] * (attackers + 1)
        for b, chance in enumerate(left):
            for k, ban_chance in enumerate(chain[b]):
                after[b - k] += chance * ban_chance
        left = after
        steps += 1
    return steps


def _chain(peers: int, attackers: int, validators: int) -> list[list[float]]:
    """For each number b of attackers left, the probabilities that 0, 1, ... of them are banned in a step."""
    if not 0 <= attackers < peers or validators < 1 or (attackers and peers < 2):
        raise ValueError(
            f"{attackers} attackers among {peers} peers with {validators} validators: "
            "somebody must be honest, and somebody must validate"
        )
    honest = peers - attackers
    return [[1.0], *(_bans(honest, b, min(validators, (honest + b) // 2)) for b in range(1, attackers + 1))]


def _bans(honest: int, attackers: int, validators: int) -> list[float]:
    chances = [0.0] * (min(attackers, validators) + 1)
    for honest_validators in range(max(0, validators - attackers), min(validators, honest) + 1):
        silent = validators - honest_validators
        ways = math.comb(honest, honest_validators) * math.comb(attackers, silent)
        chance = ways / math.comb(honest + attackers, validators)
        remaining, targets = honest + attackers - validators, attackers - silent
        for k in range(min(honest_validators, targets) + 1):
            others = math.comb(remaining - targets, honest_validators - k)
            caught = math.comb(targets, k) * others / math.comb(remaining, honest_validators)
            chances[k] += chance * caught
    return chances
