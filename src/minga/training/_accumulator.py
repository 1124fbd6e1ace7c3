"""Where gradients add up: in one buffer, or with the delayed strategy in two that change places.

The counts, and which buffer is which, change under the `condition` of the port that this belongs to; the numbers in the
buffers change under `arithmetic`, which is taken first. So a count can be read at once, however long the buffers are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from minga.averaging._codecs import CONTRIBUTION_LIMIT, is_finite
from minga.core._errors import NonFiniteError


class Accumulator:
    """Sums of `new_vector()`'s shape, in which `unit` samples have weight 1."""

    def __init__(
        self, new_vector: Callable[[], torch.Tensor], condition: threading.Condition, *, delayed: bool, unit: int
    ) -> None:
        self.arithmetic = threading.Lock()
        self._condition, self._unit = condition, unit
        self._vector = new_vector()
        self._aside: torch.Tensor | None = new_vector() if delayed else None
        self._samples = self._aside_samples = 0

    # ---- under the condition: nothing here touches a number in a buffer

    @property
    def samples(self) -> int:
        """All samples that are here and not dropped."""
        return self._samples + self._aside_samples

    @property
    def complete_samples(self) -> int:
        """Samples that go into the round, once their buffer was set aside."""
        return self._samples if self._aside is None else self._aside_samples

    @property
    def has_leftover(self) -> bool:
        """Whether something lies aside."""
        return self._aside_samples > 0

    def is_ahead(self, micro_batch: int) -> bool:
        """Whether the next step has as many samples already as the complete one, but for two micro-batches.

        One begins before the others hear of the next group, and a batch that was too large has to become smaller.
        """
        return 0 < self._aside_samples <= self._samples + 2 * micro_batch and self._samples > 0

    def count(self, samples: int) -> None:
        """Samples were added."""
        self._samples += samples

    def set_aside(self) -> None:
        """What was added is complete for its step; where there are two buffers, what comes goes into the other."""
        if self._aside is not None:
            self._vector, self._aside = self._aside, self._vector
            self._samples, self._aside_samples = 0, self._samples

    # ---- under `arithmetic`

    def add(self, accumulate: Callable[[torch.Tensor], bool]) -> bool:
        """Let `accumulate` add to the sum. Interrupted half-way that would be wrong: then the step begins anew."""
        try:
            return accumulate(self._vector)
        except BaseException:
            self._vector.zero_()
            with self._condition:
                self._samples = 0
            raise

    def merge(self) -> None:
        """What lies aside counts towards the open step again."""
        if self._aside is not None:
            self._vector.add_(self._aside)
            self._aside.zero_()
            with self._condition:
                self._samples, self._aside_samples = self.samples, 0

    def to_mean(self) -> tuple[torch.Tensor | None, int]:
        """Turn the complete sum into a mean, in place; None and 0 if it is empty.

        Raises `NonFiniteError`, with the sum forgotten, if it holds NaN, infinity or numbers too large to be sent.
        """
        vector, samples = self._complete(), self.complete_samples
        if not samples:
            return None, 0
        vector.div_(samples / self._unit)
        if not is_finite(vector, CONTRIBUTION_LIMIT):
            self._forget_complete()
            raise NonFiniteError(f"the sum of the gradients of {samples} samples is not finite")
        return vector, samples

    def to_sum(self) -> None:
        """Undo `to_mean`."""
        if self.complete_samples:
            self._complete().mul_(self.complete_samples / self._unit)

    def clear(self, *, everything: bool) -> None:
        """Forget what is complete, or everything."""
        if everything and self._aside is not None:
            self._vector.zero_()
            with self._condition:
                self._samples = 0
        self._forget_complete()

    def _forget_complete(self) -> None:
        self._complete().zero_()
        with self._condition:
            if self._aside is None:
                self._samples = 0
            else:
                self._aside_samples = 0

    def _complete(self) -> torch.Tensor:
        return self._vector if self._aside is None else self._aside
