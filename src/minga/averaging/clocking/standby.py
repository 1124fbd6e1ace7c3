"""Resting at the request of a plan, for as long as steps come as it promised.

Who has a slow line may be asked not to compute: without the upload of its gradient the rounds of all others are shorter
by more than its samples are worth. That is a prediction of a leader, made of what everybody claims, and each of these
may lie; in the worst case one of them keeps all others from training. So a peer compares the steps that it rests in
with those that it computed in. If one takes far longer, or several take clearly longer, it computes again and does not
rest for a while, whatever is asked; for twice as long each time that it rested in vain.
"""

from __future__ import annotations

import asyncio
from collections import deque
from statistics import median
from typing import Final

from minga.averaging.group import Contributor
from minga.core.aio import Backoff
from minga.core.events.averaging import PlanRestedInVain, PlanResting
from minga.core.thread_guard import loop_bound
from minga.network.rpc.node import Node

FAR_LONGER: Final = 3.0
"""How many times as long as usual one step may take while this peer rests."""

LONGER_S: Final = 10.0
"""Seconds that it may take beyond that: a group that loses its leader takes so long to form."""

CLEARLY_LONGER: Final = 1.5
"""How many times as long as usual steps may take in the median of the last `STEPS`."""

STEPS: Final = 5
UNKNOWN_STEP_S: Final = 60.0
"""Taken for the usual step of a peer that never computed in a whole one."""

UNWILLING_S: Final = 600.0
LONGEST_UNWILLING_S: Final = 86_400.0
"""Seconds for which a peer that rested in vain does not rest, the first time and at most."""


@loop_bound
class Standby:
    """Whether this peer rests."""

    def __init__(self, node: Node, contributor: Contributor) -> None:
        self._node, self._contributor = node, contributor
        self._rests = False
        self._began_s = float("-inf")
        self._last: deque[float] | None = None
        self._computed: deque[float] = deque(maxlen=STEPS)
        self._rested: deque[float] = deque(maxlen=STEPS)
        self._unwilling = Backoff(UNWILLING_S, LONGEST_UNWILLING_S)
        self._watch: asyncio.TimerHandle | None = None

    @property
    def usual_s(self) -> float:
        """Seconds that a step took while this peer computed."""
        return median(self._computed) if self._computed else UNKNOWN_STEP_S

    @property
    def is_far_longer(self) -> bool:
        """Whether this step takes far longer than steps did while this peer computed."""
        return asyncio.get_running_loop().time() - self._began_s > FAR_LONGER * self.usual_s + LONGER_S

    def watch(self, step: int, before: int) -> None:
        """A group for `step` is looked for, perhaps once more; the last one was for the step `before`, -1 if there was
        none.
        """
        now = asyncio.get_running_loop().time()
        if step != before:
            # Of the step in which this peer enters it has not seen the beginning.
            entering = step != before + 1 or before < 0
            if not entering and self._last is not None:
                self._last.append(now - self._began_s)
            if self._rests and len(self._rested) == STEPS and median(self._rested) > CLEARLY_LONGER * self.usual_s:
                self._give_up(before, f"the last steps took {median(self._rested):.1f} s")
            self._last = None if entering else self._rested if self._rests else self._computed
            self._began_s = now
        self.end()
        if self._rests:
            far_s = FAR_LONGER * self.usual_s + LONGER_S
            why = f"this step takes {far_s:.0f} s already"
            self._watch = asyncio.get_running_loop().call_at(self._began_s + far_s, self._give_up, step, why)

    def end(self) -> None:
        """Watch no further: the step's plan is there, or the peer leaves."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def ask(self, step: int, *, rest: bool) -> None:
        """Rest in the step after `step`, or compute, as a plan asks for it."""
        rest = rest and not self._unwilling.is_on
        self._contributor.rest(resting=rest)
        if rest != self._rests:
            self._rests = rest
            self._rested.clear()
            self._node.events.emit(PlanResting(step=step, resting=rest))

    def break_off(self, step: int) -> None:
        """Compute at once, in the middle of `step`."""
        if self._rests:
            self._last = None
            self.end()
            self.ask(step, rest=False)

    def _give_up(self, step: int, seen: str) -> None:
        self._unwilling.suffer()
        why = f"this peer rested, and {seen}, where {self.usual_s:.1f} s were usual"
        self._node.events.emit(PlanRestedInVain(step=step, why=why))
        self.break_off(step)
