"""How long things take on average, lately."""

from __future__ import annotations

SPEED_EMA = 0.1
"""Weight of the newest micro-batch in the estimate of seconds per sample."""


class MovingAverage:
    """Exponential moving average with bias correction: the first value counts fully."""

    def __init__(self) -> None:
        self._average = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        """Count another value."""
        self._average += SPEED_EMA * (value - self._average)
        self._weight += SPEED_EMA * (1.0 - self._weight)

    @property
    def value(self) -> float:
        """The average; 0 before the first value."""
        return self._average / self._weight if self._weight else 0.0
