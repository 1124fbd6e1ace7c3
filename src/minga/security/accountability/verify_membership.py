"""Verifying evidence about those who came: that somebody's probation was over, and where a member began."""

from __future__ import annotations

from collections import Counter

from minga.security.accountability.proofs import Admitted, Entered
from minga.security.accountability.quotes import Quotes, bodies
from minga.security.protocol.probation import CANDIDACY_LAG, probation_of
from minga.security.protocol.statements import Commit, Phase, StateClaim


def require_admission(words: Quotes, proof: Admitted) -> None:
    """Raise `EvidenceError` unless the peer of the case was to become a member then, and `ValueError` for nonsense."""
    standing, step = proof.standing, words.case.step
    standing.check()
    commits = bodies(words.said(proof.commits, Phase.COMMIT), Commit).values()
    there = [commit for commit in commits if commit.standing == standing.digest]
    words.require(words.is_majority(len(there)), "most members stood elsewhere")
    words.require(all(commit.rules == proof.rules.digest for commit in there), "the members had other rules")
    words.require(standing.step == step, "the members stood there at another step")
    named = Counter(digest for commit in commits for name, digest in set(commit.heard) if name == words.peer)
    named.pop(None, None)
    words.require(words.is_majority(max(named.values(), default=0)), "most members did not hear it")
    ledger = standing.ledger
    candidate = ledger.candidates.get(words.peer)
    if candidate is None or candidate.since > step - CANDIDACY_LAG:
        raise words.error("it was no candidate")
    needed = probation_of(words.peer, ledger, proof.rules.probation_steps)
    words.require(candidate.clean_steps + 1 >= needed, "its probation was not over")


def require_place(words: Quotes, proof: Entered) -> None:
    """Raise `EvidenceError` unless the members stood there at that step, and `ValueError` for nonsense."""
    standing = proof.standing
    standing.check()
    places = bodies(words.said(proof.places, Phase.STANDING), StateClaim).values()
    there = sum(place.standing == standing.digest for place in places)
    words.require(2 * there >= len(words.members), "most members stood elsewhere")
    words.require(standing.step == words.case.step, "the members stood there at another step")
    words.require(standing.members == words.case.members, "the members were others")
