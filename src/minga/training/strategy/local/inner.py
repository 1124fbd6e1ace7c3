"""Inner steps: those of a peer's own optimizer, by each micro-batch or by several together."""

from __future__ import annotations

from minga.training.replica.interface import ReplicaInterface


class InnerSteps:
    """Steps on `replica` by the mean gradients of at least `samples` samples; 0 is those of each micro-batch."""

    def __init__(self, replica: ReplicaInterface, samples: int) -> None:
        self._replica, self._least = replica, samples
        self.gradients = replica.vector.new() if samples else None
        """Gradients times samples that wait for a step; None where each micro-batch is one."""
        self.pending = 0
        """Their samples."""

    def take_up(self, samples: int) -> int | None:
        """Take up the present mean gradients of so many samples; how many steps were taken. None, with nothing changed,
        if they are not finite.
        """
        if self.gradients is None:
            return 1 if self._replica.inner_step() else None
        if not self._replica.accumulate(self.gradients, float(samples)):
            return None
        self.pending += samples
        if self.pending < self._least:
            return 0
        self._replica.step_by(self.gradients.div_(float(self.pending)))
        self.drop()
        return 1

    def drop(self) -> int:
        """Nothing waits any more; the samples that did."""
        dropped, self.pending = self.pending, 0
        if self.gradients is not None:
            self.gradients.zero_()
        return dropped
