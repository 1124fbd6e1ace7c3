"""The checks of a step's claims, of one part each: V1, V2 and V3 of BTARD section 4.3, and the public check.

Who validates contributes nothing in the step and is not among the senders; all others count alike.
Claims are added exactly (`math.fsum`) and elements in a fixed order, so that all peers come to the same decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from minga.network.interface import PeerId
from minga.security.verification.claims import (
    CLAIM_TOLERANCE,
    PartClaim,
    ResultAccuracy,
    claim_deviation,
    claims,
    residual_norm,
)
from minga.security.verification.count_sketch import Directions, Vector, distance, norm

# ---- The three checks: V1, V2 and V3.


@dataclass(frozen=True, slots=True)
class PublishedClaims:
    """All that was published about one part: the clipping radius τ, and each sender's claim.

    Raises `ValueError` unless there are claims, all with equally many projections, and τ is positive.
    """

    part: int
    radius: float
    claims: Mapping[PeerId, PartClaim]

    def __post_init__(self) -> None:
        if len({len(claim.projections) for claim in self.claims.values()}) != 1:
            raise ValueError(f"part {self.part}: there are no claims, or they have different numbers of projections")
        if not 0.0 < self.radius < math.inf:
            raise ValueError(f"part {self.part}: the clipping radius must be positive and finite, not {self.radius}")


def check_senders(published: PublishedClaims, recomputed: Mapping[PeerId, PartClaim | None]) -> tuple[PeerId, ...]:
    """V1: the aggregator compares each claim with that which it computes from the bytes that it received, None where no
    claim can be true. Return whose projections or norm do not belong to the bytes that they sent.

    Raises `ValueError` unless every sender's claim was recomputed.
    """
    if recomputed.keys() != published.claims.keys():
        raise ValueError(f"part {published.part}: the claims to compare are not those of the senders")
    liars = []
    for sender, claim in sorted(published.claims.items()):
        true = recomputed[sender]
        deviation = math.inf if true is None else claim_deviation(claim, true, published.radius)
        if deviation > CLAIM_TOLERANCE:
            liars.append(sender)
    return tuple(liars)


def largest_sum(published: PublishedClaims) -> float:
    """V2: anybody adds up the projections; return the largest |Σ s_i| over the directions.

    Where it exceeds `ResultAccuracy.sum_limit` of the result, result or claims are wrong; the public check of the part
    tells which.
    """
    rows = [claim.projections for claim in published.claims.values()]
    return max(abs(math.fsum(column)) for column in zip(*rows, strict=True))


def is_far(published: PublishedClaims, bound: float) -> bool:
    """V3: whether more than half of the senders claim a norm above `bound`, the `norm_bound` of the part.

    Everybody sees the same claims, so nobody has to vote: a false claim of a norm is a false vote.
    """
    return 2 * sum(claim.norm > bound for claim in published.claims.values()) > len(published.claims)


# ---- The public check of one part: all its senders publish their bytes, and all members see which one is wrong.
#
# Called CheckAveraging in BTARD (section 4.5). It follows a sum that is not zero (V2) or norms that are too large
# (V3), costs each peer one part from each sender, and ends with at least one liar banned, unless the peer that asked
# for it had no reason to. The votes of V3 are the published norms, so a false vote is a false claim.


def check_averaging(
    published: PublishedClaims,
    parts: Mapping[PeerId, Vector],
    result: Vector,
    directions: Directions,
    accuracy: ResultAccuracy,
) -> tuple[tuple[PeerId, ...], bool]:
    """Return who made a false claim, and whether the result is wrong, since it does not solve the fixed-point equation;
    from the bytes alone, the same for every peer.

    `parts`: what each sender committed itself to, decoded; the caller has compared the hashes. `result`: what the
    aggregator committed itself to; `directions` begin at the part's first element.
    Raises `ValueError` unless `parts` are those of the senders, all as long as `result`.
    """
    if parts.keys() != published.claims.keys():
        raise ValueError(f"part {published.part}: the parts are not those of the senders with claims")
    senders = sorted(parts)
    own_claims = claims([parts[sender] for sender in senders], result, published.radius, directions)
    recomputed = dict(zip(senders, own_claims, strict=True))
    norms = {
        sender: distance(parts[sender], result) if claim is None else claim.norm for sender, claim in recomputed.items()
    }
    residual = residual_norm(parts, norms, result, published.radius)
    # A fixed point lies among the parts of the majority; one far outside would buy itself a tolerance by its length.
    usual = statistics.median_low(norm(part) for part in parts.values())
    length = min(norm(result), 2.0 * usual + len(senders) * published.radius)
    limit = accuracy.residual_limit(len(senders), published.radius, length, len(result))
    return check_senders(published, recomputed), residual > limit
