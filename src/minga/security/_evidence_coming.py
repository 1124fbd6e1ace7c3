"""Verifying evidence about those who came: that somebody's probation was over, and where a member began.

The caller has made sure that the statements are those of the case's members, in its step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from minga.network._interface import PeerId
from minga.security._evidence import Admitted, Case, Entered, EvidenceError
from minga.security._probation import CANDIDACY_LAG, probation_of
from minga.security._wire import Commit, Place


def require_admission(case: Case, proof: Admitted, commits: Mapping[PeerId, Commit]) -> None:
    """Raise `EvidenceError` unless the peer of the case was to become a member then, and `ValueError` for nonsense."""
    standing, peer, count = proof.standing, PeerId(case.peer), len(case.members)
    standing.check()
    there = [commit for commit in commits.values() if commit.standing == standing.digest]
    _require(case, 2 * len(there) > count, "most members stood elsewhere")
    _require(case, all(commit.rules == proof.rules.digest for commit in there), "the members had other rules")
    _require(case, standing.step == case.step, "the members stood there at another step")
    named = Counter(digest for commit in commits.values() for name, digest in set(commit.heard) if name == peer)
    named.pop(None, None)
    _require(case, 2 * max(named.values(), default=0) > count, "most members did not hear it")
    ledger = standing.ledger
    candidate = ledger.candidates.get(peer)
    if candidate is None or candidate.since > case.step - CANDIDACY_LAG:
        raise EvidenceError("it was no candidate", peer=case.peer, round=case.step)
    needed = probation_of(peer, ledger, proof.rules.probation_steps)
    _require(case, candidate.clean_steps + 1 >= needed, "its probation was not over")


def require_place(case: Case, proof: Entered, places: Mapping[PeerId, Place]) -> None:
    """Raise `EvidenceError` unless the members stood there at that step, and `ValueError` for nonsense."""
    standing = proof.standing
    standing.check()
    there = sum(place.standing == standing.digest for place in places.values())
    _require(case, 2 * there >= len(case.members), "most members stood elsewhere")
    _require(case, standing.step == case.step, "the members stood there at another step")
    _require(case, standing.members == case.members, "the members were others")


def _require(case: Case, holds: bool, words: str) -> None:
    if not holds:
        raise EvidenceError(words, peer=case.peer, round=case.step)
