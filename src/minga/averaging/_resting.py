"""Resting at the request of a plan, for as long as steps come as it promised.

Who has a slow line may be asked not to compute: without the upload of its gradient the rounds of all others are shorter
by more than its samples are worth. That is a prediction of a leader, made of what everybody claims, and each of these
may lie; in the worst case one of them keeps all others from training. So a peer that rests compares: a step takes much
longer than when it computed itself, and it computes again and does not rest for a while, whatever is asked.
"""

from __future__ import annotations

import asyncio
from typing import Final

from minga.averaging._contributor import Contributor
from minga.network._node import Node

MUCH_LONGER: Final = 3.0
"""How many times as long as before a step may take while this peer rests."""

LONGER_S: Final = 10.0
"""Seconds that it may take beyond that: a group that loses its leader takes so long to form."""

UNKNOWN_STEP_S: Final = 60.0
"""Taken for the usual step of a peer that was asked to rest before it ever computed in one."""

UNWILLING_S: Final = 600.0
"""Seconds for which a peer that rested in vain does not rest again."""


class Resting:
    """Whether this peer rests."""

    def __init__(self, node: Node, contributor: Contributor) -> None:
        self._node, self._contributor = node, contributor
        self._rests = False
        self._step = -1
        self._began_s: float | None = None
        self._usual_s = UNKNOWN_STEP_S
        self._unwilling_until_s = float("-inf")
        self._watch: asyncio.TimerHandle | None = None

    def begin_step(self, step: int) -> None:
        """Note that a group for `step` is looked for, perhaps once more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if step != self._step:
            if step == self._step + 1 and self._began_s is not None and not self._rests:
                self._usual_s = now - self._began_s
            self._step, self._began_s = step, now
        self.end()
        if self._rests and self._began_s is not None:
            self._watch = loop.call_at(self._began_s + MUCH_LONGER * self._usual_s + LONGER_S, self._give_up)

    def end(self) -> None:
        """Watch no further: the step's plan is there, or the peer leaves."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def ask(self, *, rest: bool) -> None:
        """Rest, or go on computing, as a plan asks for it."""
        rest = rest and asyncio.get_running_loop().time() >= self._unwilling_until_s
        self._contributor.rest(resting=rest)
        if rest != self._rests:
            self._rests = rest
            self._node.events.emit("plan.resting", step=self._step, resting=rest)

    def _give_up(self) -> None:
        self._watch = None
        now = asyncio.get_running_loop().time()
        self._unwilling_until_s = now + UNWILLING_S
        took_s = now - (self._began_s or now)
        why = f"this peer rests, and the step takes {took_s:.0f} s already; {self._usual_s:.0f} s are usual"
        self._node.events.emit("plan.rested_in_vain", step=self._step, why=why)
        self.ask(rest=False)
