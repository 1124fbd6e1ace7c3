"""Rounds with one contributor: which member that is, and whether a plan says so truly.

Members report a score with their samples, and the leader writes the scores of all members into its signed plan. So each
member can see that its own score is there, and that the contributor follows from the scores: it has the least. Of equal
scores the first in the ranking of the step's leaders counts (a hash of run, step and peer), which no peer can choose.
What the scores of the others are is their own word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from minga.averaging.election import ranking
from minga.averaging.messages import PeerScore, Plan
from minga.network.interface import PeerId


def best_contributor(run_id: str, step: int, scores: Mapping[PeerId, PeerScore | None]) -> PeerId | None:
    """The peer with the least score, those that are early coming last; None if there is no score that is a number."""
    rated = {
        peer: (score.early, score.value)
        for peer, score in scores.items()
        if score is not None and math.isfinite(score.value)
    }
    least = min(rated.values(), default=None)
    return next(iter(ranking(run_id, step, [peer for peer, rate in rated.items() if rate == least])), None)


def wrong_choice(run_id: str, plan: Plan, me: int, said: Collection[PeerScore | None]) -> str | None:
    """Why the plan of a round with one contributor is wrong by what its member number `me` knows, which `said` these
    scores of itself in this step; None if it is not.
    """
    if len(plan.scores) != len(plan.members):
        return "it does not list one score for each member"
    if plan.scores[me] not in said:
        return "it lists a score of this peer that this peer never told"
    best = best_contributor(run_id, plan.step, dict(zip(plan.ids, plan.scores, strict=True)))
    if [plan.ids[index] for index in plan.contributors] != ([] if best is None else [best]):
        return "another member than the one with the best score is to contribute"
    return None
