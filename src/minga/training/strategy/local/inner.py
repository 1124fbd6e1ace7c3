"""Inner steps: those of a peer's own optimizer, by each micro-batch or by several together."""

from __future__ import annotations

from minga.training.replica.interface import ReplicaInterface


class InnerSteps:
    """Steps on `replica` by the mean gradients of at least `samples` samples; 0 is those of each micro-batch."""

    def __init__(self, replica: ReplicaInterface, samples: int) -> None:
        self._replica, self._least = replica, samples
        self.gradients = replica.new_sum() if samples else None
        """Gradients times samples that wait for a step; None where each micro-batch is one."""
        self.pending = 0
        """Their samples."""

    def take_up(self, samples: int) -> int | None:
        """Take up the present mean gradients of so many samples; how many steps were taken. None, with nothing changed,
        if they are not finite.
        """
        if self.gradients is None:
            return 1 if self._replica.inner_step() else None
        taken = self.gradients.add(float(samples))
        if not (taken if isinstance(taken, bool) else taken.wait()):
            return None
        self.pending += samples
        if self.pending < self._least:
            return 0
        self._replica.step_by(self.gradients.divided(float(self.pending)))
        self.drop()
        return 1

    def drop(self) -> int:
        """Nothing waits any more; the samples that did."""
        dropped, self.pending = self.pending, 0
        if self.gradients is not None:
            self.gradients.clear()
        return dropped
