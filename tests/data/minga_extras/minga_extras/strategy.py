"""A strategy: synchronous, but what a peer contributes to a step is at most `longest` long."""

from minga.training import Settings, Synchronous, real


class CappedSettings(Settings):
    """How much one peer may change."""

    longest: float = real(100.0, 0.0, 1e9, "largest norm of a contribution", above_low=True)


class Capped(Synchronous):
    Settings = CappedSettings

    def _to_mean(self, vector, samples):
        super()._to_mean(vector, samples)
        self.factor = min(1.0, self.settings.longest / max(float(vector.norm()), 1e-30))
        vector.mul_(self.factor)

    def _to_sum(self, vector, samples):
        super()._to_sum(vector.div_(self.factor), samples)
