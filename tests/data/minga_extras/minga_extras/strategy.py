"""A strategy: synchronous, but what a peer contributes to a step is at most `LONGEST` long."""

from minga.training import Synchronous

LONGEST = 100.0


class Capped(Synchronous):
    def _to_mean(self, vector, samples):
        super()._to_mean(vector, samples)
        self.factor = min(1.0, LONGEST / max(float(vector.norm()), 1e-30))
        vector.mul_(self.factor)

    def _to_sum(self, vector, samples):
        super()._to_sum(vector.div_(self.factor), samples)
