"""Rounds with one contributor: which member that is, and whether a plan says so truly.

Members report a score with their samples, and the leader writes the scores of all members into its signed plan. So each
member can see that its own score is there, and that the contributor follows from the scores: it has the least. Of equal
scores the first in the ranking of the step's leaders counts (a hash of run, step and peer), which no peer can choose.
What the scores of the others are is their own word.

A report may be under way while the leader makes its plan. So the plan may have a score that the member has replaced
since, but not one that it replaced `REPLACED_S` and a round trip before the plan came.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from minga.averaging.election import ranking
from minga.averaging.messages import PeerScore, Plan
from minga.network.interface import PeerId

REPLACED_S: Final = 5.0


class ToldScores:
    """The scores that a member told one leader of itself, with the times by the loop's clock."""

    def __init__(self) -> None:
        self._told: list[tuple[float, PeerScore | None]] = []

    def tell(self, score: PeerScore | None, now_s: float) -> None:
        """It is sent now; None is that there is nothing to give."""
        if not self._told or self._told[-1][1] != score:
            self._told.append((now_s, score))

    def fresh(self, now_s: float, round_trip_s: float = 0.0) -> frozenset[PeerScore | None]:
        """Those that a plan may have which comes now from a leader at such a distance."""
        oldest_s = now_s - REPLACED_S - round_trip_s
        replaced_s = [when_s for when_s, _ in self._told[1:]] + [now_s]
        return frozenset(
            score for (_, score), until_s in zip(self._told, replaced_s, strict=True) if until_s >= oldest_s
        )


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
    scores of itself of late; None if it is not.
    """
    if len(plan.scores) != len(plan.members):
        return "it does not list one score for each member"
    if plan.scores[me] not in said:
        return "it lists a score of this peer that is not what this peer told"
    best = best_contributor(run_id, plan.step, dict(zip(plan.ids, plan.scores, strict=True)))
    if [plan.ids[index] for index in plan.contributors] != ([] if best is None else [best]):
        return "another member than the one with the best score is to contribute"
    return None
