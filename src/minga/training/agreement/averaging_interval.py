"""How often peers that round differently average their parameters.

Theory of operation. The leader of a round writes the interval k, in steps, into its signed plan, so that all members
know it at once: they average after a step whose number k divides. k is 0 until a leader sees two peers whose states
differ by rounding. It begins as short as states are compared, and doubles at each averaging as long as the peers were
far closer than the tolerance before it; it halves where they were not. So k follows from the drift that was measured,
and no estimate has to hold. A leader that was in no round yet begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minga.core.thread_guard import loop_bound
from minga.training.agreement.state_history import Drift

LONGEST: Final = 128
"""Comparisons of states between two averagings, at most."""
CLOSE, FAR = 1 / 16, 1 / 4
"""Shares of the tolerance: below the first the interval doubles, above the second it halves."""


@loop_bound
class AveragingInterval:
    """The interval of one run, as one peer knows it.

    `fixed` is what the run spec says, 0 for as needed. States are compared every `compared_every` steps. It never
    happens while it is not `is_useful` (optimizers that round alike, a strategy that shares parameters anyway).
    """

    def __init__(self, fixed: int, compared_every: int, *, is_useful: Callable[[], bool]) -> None:
        self.every = 0
        """That of the last plan."""
        self._fixed, self._shortest, self._is_useful = fixed, compared_every, is_useful

    @property
    def is_fixed(self) -> bool:
        """Whether the run spec says how often."""
        return self._fixed > 0

    def choose(self, step: int, drift: Drift | None) -> int:
        """What a leader writes into the plan of the round that leads to `step`."""
        if self._fixed or not self._is_useful():
            return self._fixed
        if drift is None:
            return self.every
        if not self.every:
            return self._shortest
        if step % self.every:
            return self.every
        if drift.distance > FAR * drift.tolerance:
            return max(self._shortest, self.every // 2)
        if drift.distance < CLOSE * drift.tolerance:
            return min(LONGEST * self._shortest, self.every * 2)
        return self.every

    def follow(self, every: int) -> bool:
        """A plan with this interval counts; whether that is news."""
        if self._fixed or not self._is_useful():
            return False
        is_news, self.every = every != self.every, every
        return is_news

    def is_due(self, step: int, every: int) -> bool:
        """Whether parameters are averaged after `step` by a plan with the interval `every`.

        A leader can neither overrule the run spec nor have parameters averaged more often than states are compared.
        """
        if self._fixed:
            return step % self._fixed == 0
        return self._is_useful() and every >= self._shortest and step % every == 0
