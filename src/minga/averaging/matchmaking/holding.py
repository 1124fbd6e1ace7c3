"""How long a full step waits for newcomers that are fetching its state.

Theory of operation. While the swarm waits its state does not change. So a newcomer that can fetch it in that time
gets in, however short the steps are; if nobody ever waited, newcomers of such a run would chase its state for ever.
But what one step waits, everybody waits. So there is one bound for all newcomers of a step together: the time that
a step takes, its round included, and `LEAST_S` at least, in which most newcomers are done.

Who misses that begins anew, with the state of the next step, and that waits as long as the newcomer has been at it
until then, up to a bound: so it gets in as soon as that is longer than its download takes. A newcomer that needs
longer than the bound, or pretends to, is given up when it has been at it for `GIVEN_UP` times as long.

Where it is the lines of the members that are slow, a newcomer has to wait for them, whatever its own is like, and a few
members lose less by waiting than many do, and gain more. So there the bound is twice what these lines need for it, and
each newcomer may cost `PRICE_S` seconds of one member's time, however many members there are. For one whose own line is
slow nobody waits longer: once it is in, every round takes as long as it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minga.network.interface import PeerId

LEAST_S, MOST_S = 2.0, 10.0
"""Bounds of what one step waits for all newcomers together; one of steps that take longer waits as long as they do."""

PRICE_S = 600.0
"""Of a volunteer that stays for an hour, this is a sixth of what it gives; few need as much."""

GIVEN_UP = 3.0


STATE_BYTES = 16
"""What a state takes for each value of the vector, at most as a rule: it, two moments and an average, in float32."""


@dataclass(frozen=True)
class Patience:
    """What one step of so many `members` has for newcomers, where steps take `step_s` seconds and the lines of the
    members take `giving_s` to give one newcomer the state, 0 where theirs are not what is slow.
    """

    step_s: float
    members: int
    giving_s: float = 0.0

    def longest_s(self, newcomers: int) -> float:
        """How many seconds it waits for so many newcomers at the very most."""
        price_s = PRICE_S * min(1.0, newcomers / self.members)
        return max(MOST_S, self.step_s, min(price_s, 2.0 * self.giving_s * newcomers))

    def waited_for(self, syncing: Mapping[PeerId, float]) -> list[PeerId]:
        """Those for whom it waits; `syncing` tells for how many seconds each has been at it."""
        most_s = GIVEN_UP * self.longest_s(len(syncing))
        return [peer for peer, seconds in syncing.items() if seconds < most_s]

    def hold_s(self, syncing: Mapping[PeerId, float], since_full_s: float) -> float:
        """For how many seconds it waits for all of them together, when it has been full for `since_full_s`."""
        waited = self.waited_for(syncing)
        before = [syncing[peer] - since_full_s for peer in waited]
        return min(max(LEAST_S, self.step_s, *before), self.longest_s(len(waited)))
