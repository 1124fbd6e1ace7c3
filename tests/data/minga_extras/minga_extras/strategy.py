"""A strategy: synchronous, but what a peer contributes to a step is at most `LONGEST` long."""

from minga.training import Synchronous

LONGEST = 100.0


class Capped(Synchronous):
    def contribution(self):
        mean, samples = super().contribution()
        self.factor = 1.0 if mean is None else min(1.0, LONGEST / max(float(mean.norm()), 1e-30))
        return mean if mean is None else mean.mul_(self.factor), samples

    def take_back(self):
        self._complete().div_(self.factor)
        super().take_back()
