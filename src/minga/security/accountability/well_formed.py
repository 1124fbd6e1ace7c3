"""Whether what a member says in a phase fits the terms of the attempt; what does not fit counts as not said."""

from __future__ import annotations

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import Terms
from minga.security.protocol.statements import Claims, Commit, Result


def commit_is_sound(terms: Terms, peer: PeerId, body: Commit) -> bool:
    """A digest for each part, none from a validator."""
    return (body.root is None) == (peer in terms.validators)


def result_is_sound(terms: Terms, peer: PeerId, body: Result) -> bool:
    """An aggregate and a radius from a member that aggregates a part, and from no other."""
    aggregates = terms.division.numel(terms.members.index(peer)) > 0
    if aggregates != (body.value is not None) or aggregates != (body.clip > 0.0):
        return False
    return all(rank in terms.contributors for rank in body.silent)


def claims_are_sound(terms: Terms, peer: PeerId, body: Claims) -> bool:
    """A claim about each part whose aggregate the author could get, nothing from a validator."""
    if peer in terms.validators:
        return not body.claims
    if len(body.claims) != len(terms.members) or any(part >= len(terms.members) for part in body.missing):
        return False
    due, count = set(terms.division.parts).difference(body.missing), terms.rules.directions
    return all(
        (claim is not None and len(claim.projections) == count) if part in due else claim is None
        for part, claim in enumerate(body.claims)
    )
