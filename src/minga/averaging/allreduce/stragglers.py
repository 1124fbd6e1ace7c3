"""When the work of a slow aggregator is worth moving to others.

A member judges by what it sees itself: the bytes that it still lacks from an aggregator, and the rate at which that one
delivered so far, give the seconds that are left. If half of the aggregators are done, their rate together tells how
long the same bytes would take there, after a repair. Moving pays if

    left / rate > 2 * (REPAIR_S + left / rate of those that are done),   and at least `LEAST_GAIN_S` are saved.

A plan that expected the round to take this long is not overruled: slow links are in its reckoning. A silent member is
not slow: either it is heard again soon, or it is given up, and until then others may have to wait for it. So no member
is called slow meanwhile, and what was delivered before a repair, and the time that it took, do not count after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from minga.averaging.allreduce.round import Round
from minga.core.thread_guard import loop_bound

REPAIR_S: Final = 0.5
LEAST_GAIN_S: Final = 2.0
LOOK_PERIOD_S: Final = 0.5
LOOK_SHARE: Final = 0.05
"""Progress is looked at so often, or after this share of the round, if that is longer."""

EARLIEST_S: Final = 2.0
OVERDUE: Final = 1.25
"""An aggregator is on time up to so many times the predicted duration of the round."""


@loop_bound
class StragglerDetector:
    """Watches the progress of a round at one member."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._looked_s = float("-inf")
        self._term, self._since_s = 0, round.started_s
        self._left_then: Counter[int] = Counter()
        self._done_s: dict[int, float] = {}
        self._slow: tuple[int, ...] = ()
        self._told: set[int] = set()
        self._votes: dict[int, set[int]] = {}

    def news(self) -> tuple[int, ...]:
        """Aggregators that are slow and were not named before."""
        fresh = tuple(member for member in self._look() if member not in self._told)
        self._told.update(fresh)
        return fresh

    def agrees(self, sender: int, member: int) -> bool:
        """Whether `member`, which `sender` calls slow, is slow for this member too, or for more than half of all."""
        voters = self._votes.setdefault(member, set())
        voters.add(sender)
        return member in self._look() or 2 * len(voters) > len(self._round.alive())

    def _look(self) -> tuple[int, ...]:
        now = asyncio.get_running_loop().time()
        if now - self._looked_s >= max(LOOK_PERIOD_S, LOOK_SHARE * self._round.expected_s):
            self._looked_s = now
            self._slow = () if self._round.silent() else self._judge(now)
        return self._slow

    def _judge(self, now: float) -> tuple[int, ...]:
        round = self._round
        total: Counter[int] = Counter()
        left: Counter[int] = Counter()
        for (term, _), assignment in round.assignments.items():
            if not term and not round.is_broken(assignment):  # a repair is not repaired for this
                sizes = [(round.chunks[i].upload_bytes, round.have[i]) for i in assignment.chunks]
                total[assignment.aggregator] += sum(size for size, _ in sizes)
                left[assignment.aggregator] += sum(size for size, have in sizes if not have)
        done = [member for member in total if not left[member]]
        for member in done:
            self._done_s.setdefault(member, now - round.started_s)
        if self._term != round.term:
            self._term, self._since_s, self._left_then = round.term, now, left
        elapsed_s = now - self._since_s
        too_early = elapsed_s < max(EARLIEST_S, OVERDUE * round.expected_s)
        if too_early or not done or 2 * len(done) < len(total):
            return ()
        others_rate = sum(total[member] for member in done) / max(self._done_s[member] for member in done)
        slow = []
        for member in sorted(total.keys() - set(done)):
            delivered = (self._left_then or total)[member] - left[member]
            remaining_s = left[member] * elapsed_s / max(1, delivered)
            moved_s = REPAIR_S + left[member] / others_rate
            if remaining_s > 2.0 * moved_s and remaining_s - moved_s > LEAST_GAIN_S:
                slow.append(member)
        return tuple(slow)
