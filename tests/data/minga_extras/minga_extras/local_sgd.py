"""A strategy: each peer steps alone after every micro-batch, and a round takes the mean of all parameters."""

import torch

from minga import NonFiniteError
from minga.training import ContributionFate, Recovery, Strategy, StrategyFacts


class LocalSGD(Strategy):
    facts = StrategyFacts(
        max_in_flight=0, keeps_late_micro_batches=False, vectors=2, payload="parameters", keeps_uncounted=True
    )

    def begin(self, replica):
        super().begin(replica)
        self.anchor, self.sealed = replica.read_values(), None

    def micro_batch(self, samples):
        return self.replica.inner_step()

    def contribution(self):
        if self.samples and self.sealed is None:
            self.sealed = self.replica.read_values()
        if self.sealed is not None and not self.sealed.isfinite().all():
            self.sealed = self._count_anew()
            raise NonFiniteError("the parameters are not finite")
        return self.sealed, self.samples

    def take_back(self):
        self.sealed = None

    def absorb(self, round, mean, fate):
        kept = self.local_tensors() if fate is ContributionFate.UNCOUNTED else None
        self.replica.adopt(mean, round)
        self.restored({}, round, kept)

    def shared_tensors(self):
        own = {name: each for name, each in self.replica.tensors().items() if not name.startswith("optimizer/")}
        return own | self.replica.named(self.anchor)

    def local_tensors(self):
        own = self.replica.moments() | {"parameters": self.replica.read_values(), "anchor": self.anchor}
        return own | {"samples": torch.tensor(self.samples)}

    def restored(self, shared, round, local):
        self.anchor, self.sealed = self.replica.read_values(), None
        if local is not None:  # what this peer has moved goes on from the new parameters, to the bit if they are old
            own, before = local["parameters"], local["anchor"]
            self.replica.write_values(torch.where(before == self.anchor, own, self.anchor + (own - before)))
            self.replica.move_buffers(own[self.replica.vector.parameters_numel :])
            self.replica.put({name: each for name, each in local.items() if name.startswith("optimizer/")})
        self._count_anew(0 if local is None else int(local["samples"]))

    def missed(self, rounds):
        return Recovery.REBASE
