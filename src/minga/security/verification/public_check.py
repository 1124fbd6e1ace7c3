"""The public check of one part: all its senders publish their bytes, and all members see which one is wrong.

Called CheckAveraging in BTARD (section 4.5). It follows a sum that is not zero (V2) or norms that are too large (V3),
costs each peer one part from each sender, and ends with at least one liar banned, unless the peer that asked for it had
no reason to. The votes of V3 are the published norms, so a false vote is a false claim.
"""

from __future__ import annotations

from collections.abc import Mapping

from minga.network.interface import PeerId
from minga.security.verification.checks import PublishedClaims, check_senders
from minga.security.verification.claims import claims, residual_norm
from minga.security.verification.count_sketch import Directions
from minga.security.verification.exact_sum import Vector, distance, norm
from minga.security.verification.findings import Finding, Offence
from minga.security.verification.tolerance import ResultAccuracy


def check_averaging(
    published: PublishedClaims,
    parts: Mapping[PeerId, Vector],
    result: Vector,
    directions: Directions,
    accuracy: ResultAccuracy,
) -> tuple[Finding, ...]:
    """Return who did wrong, from the bytes alone, the same for every peer; empty if nobody did.

    `parts`: what each sender committed itself to, decoded; the caller has compared the hashes. `result`: what the
    aggregator committed itself to; `directions` begin at the part's first element.
    Raises `ValueError` unless `parts` are those of the senders, all as long as `result`.
    """
    if parts.keys() != published.claims.keys():
        raise ValueError(f"part {published.part}: the parts are not those of the senders with claims")
    senders = sorted(parts)
    own_claims = claims([parts[sender] for sender in senders], result, published.radius, directions)
    recomputed = dict(zip(senders, own_claims, strict=True))
    findings = list(check_senders(published, recomputed))
    norms = {
        sender: distance(parts[sender], result) if claim is None else claim.norm for sender, claim in recomputed.items()
    }
    residual = residual_norm(parts, published.weights, norms, result, published.radius)
    limit = accuracy.residual_limit(published.total_weight, published.radius, norm(result), len(result))
    if residual > limit:
        findings.append(Finding(published.aggregator, Offence.WRONG_RESULT, published.part, residual, limit))
    return tuple(findings)
