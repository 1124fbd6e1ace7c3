"""The three checks of a step's claims, of one part each: V1, V2 and V3 of BTARD section 4.3.

Who validates contributes nothing in the step and is not among the senders. A candidate's claims are checked like those
of a member, but its weight is 0, so it neither shifts the sum nor has a vote.
All numbers are added exactly (`math.fsum`), so that all peers come to the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minga.network.interface import PeerId
from minga.security.verification.claims import PartClaim
from minga.security.verification.findings import Doubt, Finding, Offence
from minga.security.verification.tolerance import CLAIM_TOLERANCE, claim_deviation


@dataclass(frozen=True, slots=True)
class PublishedClaims:
    """All that was published about one part: who aggregated it, each sender's weight (samples) and claim.

    `radius` is the clipping radius τ of the part. Raises `ValueError` unless senders with weights and with claims are
    the same, all claims have equally many projections, weights are not negative and not all 0, and τ is positive.
    """

    part: int
    aggregator: PeerId
    radius: float
    weights: Mapping[PeerId, int]
    claims: Mapping[PeerId, PartClaim]

    def __post_init__(self) -> None:
        if self.weights.keys() != self.claims.keys():
            raise ValueError(f"part {self.part}: the senders with weights are not those with claims")
        if min(self.weights.values(), default=0) < 0 or self.total_weight <= 0:
            raise ValueError(f"part {self.part}: weights must not be negative, and one of them positive")
        if len({len(claim.projections) for claim in self.claims.values()}) != 1:
            raise ValueError(f"part {self.part}: claims have different numbers of projections")
        if not 0.0 < self.radius < math.inf:
            raise ValueError(f"part {self.part}: the clipping radius must be positive and finite, not {self.radius}")

    @property
    def total_weight(self) -> int:
        """The samples behind all parts."""
        return sum(self.weights.values())


def check_senders(published: PublishedClaims, recomputed: Mapping[PeerId, PartClaim | None]) -> tuple[Finding, ...]:
    """V1: the aggregator compares each claim with that which it computes from the bytes that it received, None where no
    claim can be true.

    Raises `ValueError` unless every sender's claim was recomputed.
    """
    if recomputed.keys() != published.claims.keys():
        raise ValueError(f"part {published.part}: the claims to compare are not those of the senders")
    findings = []
    for sender, claim in sorted(published.claims.items()):
        true = recomputed[sender]
        deviation = math.inf if true is None else claim_deviation(claim, true, published.radius)
        if deviation > CLAIM_TOLERANCE:
            findings.append(Finding(sender, Offence.FALSE_CLAIM, published.part, deviation, CLAIM_TOLERANCE))
    return tuple(findings)


def largest_sum(published: PublishedClaims) -> float:
    """V2: anybody adds up the weighted projections; return the largest |Σ w_i s_i| over the directions.

    Where it exceeds `ResultAccuracy.sum_limit` of the result, result or claims are wrong; the public check of the part
    tells which.
    """
    rows = [
        [published.weights[sender] * projection for projection in claim.projections]
        for sender, claim in published.claims.items()
    ]
    return max(abs(math.fsum(column)) for column in zip(*rows, strict=True))


def check_norms(published: PublishedClaims, bound: float) -> Doubt | None:
    """V3: whether senders with more than half of the weight claim a norm above `bound`, the `norm_bound` of the part.

    Everybody sees the same claims, so nobody has to vote: a false claim of a norm is a false vote.
    """
    voting = sum(weight for sender, weight in published.weights.items() if published.claims[sender].norm > bound)
    if 2 * voting <= published.total_weight:
        return None
    return Doubt(published.part, voting / published.total_weight, bound)
