"""How long a root or relay waits for the members that send to it.

Who never opens its stream is given up after `APPEAR_S` and some round trips (plus the time of a dial). Who lags when
more than half have delivered everything is given up after max(`LAG_S`, 3 * the time that these needed), but not before
1.5 times what the plan expected the round to take, for a slow link is no fault. Silence is noticed by the stream
itself; a child that is alive, and whose turn it is, but to or from which no byte moves for `STALL_S` is given up, too
(a relay, which itself waits for others, after twice that). It is the turn of those that owe the first chunk that is not
finished; and once all is finished, of those that have not taken it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.round import Round
from minga.network.rpc.framing import MessageStream

APPEAR_S = 2.0
DIAL_S = 3.0
LAG_S = 3.0
STALL_S = 30.0
EXPECTED_FACTOR = 1.5


class WaitDeadlines:
    """The waiting for the `children` of one assignment at this member; it begins now."""

    def __init__(self, round: Round, assignment: Assignment, children: frozenset[int]) -> None:
        self._round, self._assignment, self._children = round, assignment, children
        self._begun_s = asyncio.get_running_loop().time()
        self._appear_s = self._times_to_appear()
        self._lag_deadline_s: float | None = None

    def given_up(
        self, absent: Collection[int], awaited: Mapping[int, MessageStream], laggards: Collection[int]
    ) -> dict[int, str]:
        """Whom not to wait for any longer, and why: of the `absent`, of those whose turn it is (the `awaited`, with
        their streams), and of the `laggards` (who have not delivered everything).
        """
        elapsed_s = asyncio.get_running_loop().time() - self._begun_s
        lost = {
            child: "it never sent its part"
            for child in sorted(absent)
            if child in self._round.dead or elapsed_s > self._appear_s[child]
        }
        for child, stream in awaited.items():
            stall_s = STALL_S * (2 if self._round.routes.is_relay(self._assignment, child) else 1)
            if stream.idle_s > stall_s:
                lost[child] = f"nothing moved for {stall_s:.0f} s"
        if self._is_over_for_laggards(elapsed_s, len(laggards)):
            lost.update(dict.fromkeys(sorted(laggards), "it is far slower than the others"))
        return lost

    def _is_over_for_laggards(self, elapsed_s: float, laggards: int) -> bool:
        if 2 * laggards >= len(self._children):
            self._lag_deadline_s = None
        elif self._lag_deadline_s is None:
            expected_s = EXPECTED_FACTOR * self._round.expected_s
            self._lag_deadline_s = max(elapsed_s + max(LAG_S, 3.0 * elapsed_s), expected_s)
        return self._lag_deadline_s is not None and elapsed_s > self._lag_deadline_s

    def _times_to_appear(self) -> dict[int, float]:
        """How long each may take to open its stream: the plan may have come to it later, and it may have to dial."""
        round = self._round
        members = {child: round.members[child] for child in self._children}
        trips = {c: round.node.round_trip_s(m) or 0.0 for c, m in members.items() if round.node.is_connected(m)}
        longest = max(trips.values(), default=0.0)
        return {c: APPEAR_S + 2 * trips[c] if c in trips else APPEAR_S + DIAL_S + 4 * longest for c in self._children}
