"""The strategy seam: what is sent when, and what becomes of gradients that come while a round runs.

A strategy holds the sums of gradients and turns them into contributions. Synchronous has one buffer; Delayed has two
that change places, so that the trainer goes on into one while the other is averaged. The port
(`training/bridge/gradient_port.py`) keeps the phases of a step and asks the strategy's facts whether to wait. Entry
points "minga.strategies" of installed packages bring further ones; `minga.testing` has the suite that each must pass.

    close ──▶ contribution ──▶ absorb         the round counted: what went into it is forgotten
      ▲             └────────▶ take_back      it came to nothing: all of it counts again, later micro-batches too
      └─ micro_batch, merge ◀──────┘

The counts, and which buffer is which, change under the `condition` of the port that this belongs to; the numbers in the
buffers change under `arithmetic`, which is taken first. So a count can be read at once, however long the buffers are.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError


class Strategy(ABC):
    """Sums of `new_vector()`'s shape, in which `unit` samples have weight 1."""

    facts: ClassVar[StrategyFacts]

    def __init__(self, new_vector: Callable[[], torch.Tensor], condition: threading.Condition, *, unit: int) -> None:
        self.arithmetic = threading.Lock()
        self._condition, self._unit = condition, unit
        self._vector = new_vector()
        self._samples = 0
        self._is_contributed = False  # what is complete is a mean at present, no sum

    # ---- under the condition: nothing here touches a number in a buffer

    @property
    @abstractmethod
    def samples(self) -> int:
        """All samples that are here and not dropped."""

    @property
    @abstractmethod
    def complete_samples(self) -> int:
        """Samples that go into the round, once it is closed."""

    @property
    @abstractmethod
    def has_leftover(self) -> bool:
        """Whether there is something that `merge` would count towards the open step."""

    @abstractmethod
    def is_ahead(self, micro_batch: int) -> bool:
        """Whether there is enough for the step after this one already, micro-batches having so many samples."""

    @abstractmethod
    def close(self) -> None:
        """What was added is complete for its step."""

    def count(self, samples: int) -> None:
        """Samples were added."""
        self._samples += samples

    # ---- under `arithmetic`

    def micro_batch(self, accumulate: Callable[[torch.Tensor], bool]) -> bool:
        """Let `accumulate` add to the sum. Interrupted half-way that would be wrong: then the step begins anew."""
        try:
            return accumulate(self._vector)
        except BaseException:
            self._vector.zero_()
            with self._condition:
                self._samples = 0
            raise

    @abstractmethod
    def merge(self) -> None:
        """What was closed for a round that came to nothing counts towards the open step again."""

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """The mean of what is complete, and its samples; None and 0 if it is empty. It must not be changed.

        Until `absorb` or `take_back` it is the same however often it is asked for.
        Raises `NonFiniteError`, with the sum forgotten, if it holds NaN, infinity or numbers too large to be sent.
        """
        vector, samples = self._complete(), self.complete_samples
        if not samples:
            return None, 0
        if not self._is_contributed:
            try:
                self._to_mean(vector, samples)
            except NonFiniteError:
                self._forget_complete()
                raise
            self._is_contributed = True
        return vector, samples

    def take_back(self) -> None:
        """The round came to nothing: undo `contribution`, unless that is done already."""
        if self._is_contributed:
            self._is_contributed = False
            self._to_sum(self._complete(), self.complete_samples)

    @abstractmethod
    def absorb(self, *, everything: bool) -> None:
        """The model has changed: forget what is complete, or everything."""

    @abstractmethod
    def _complete(self) -> torch.Tensor: ...

    def _forget_complete(self) -> None:
        self._is_contributed = False
        self._complete().zero_()
        with self._condition:
            self._forget_count()

    @abstractmethod
    def _forget_count(self) -> None:
        """Under the condition: there are no complete samples."""

    def _to_mean(self, vector: torch.Tensor, samples: int) -> None:
        """Make the sum over `samples` samples what is contributed, in place. Raises `NonFiniteError`."""
        vector.div_(samples / self._unit)
        if not is_finite(vector, CONTRIBUTION_LIMIT):
            raise NonFiniteError(f"the sum of the gradients of {samples} samples is not finite")

    def _to_sum(self, vector: torch.Tensor, samples: int) -> None:
        """Undo `_to_mean`."""
        vector.mul_(samples / self._unit)
