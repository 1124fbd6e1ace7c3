"""How long attackers last who cheat in every step and are caught by validators alone.

In a step, m of the n peers validate and m others are targets, in pairs. An attacker is banned when an honest validator
is paired with it; attackers who validate say nothing. With b attackers among n peers, the number h of honest validators
is hypergeometric: m draws from n - b honest ones and b others. The targets of these h are a random choice from the
n - m who do not validate, of whom b - (m - h) are attackers: so the number k that is banned is hypergeometric again.
The banned leave, which makes a Markov chain over b with n - b fixed; its mean comes from the recurrence
E(b) = (1 + Σ_{k>0} p_k E(b - k)) / (1 - p_0), its quantiles from following the distribution step by step.

The number of validators stays as it is while the peers become fewer, but never exceeds half of them.
"""

from __future__ import annotations

import math


def mean_steps_to_ban_all(peers: int, attackers: int, validators: int) -> float:
    """Return the expected number of steps until none of `attackers` among `peers` is left; somebody is honest."""
    chain = _chain(peers, attackers, validators)
    means = [0.0]
    for b in range(1, attackers + 1):
        bans = chain[b]
        means.append((1.0 + sum(bans[k] * means[b - k] for k in range(1, len(bans)))) / (1.0 - bans[0]))
    return means[attackers]


def steps_to_ban_all(peers: int, attackers: int, validators: int, probability: float = 0.95) -> int:
    """Return the least number of steps after which all of `attackers` are gone with at least `probability` < 1."""
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
