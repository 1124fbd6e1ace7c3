"""An attack: a member that saves itself the computing, and sends zeros."""

import torch

from minga.simulation import Attack


class Freeloader(Attack):
    changes = "gradient"

    async def hostile_gradient(self, work, step, seeds):
        return torch.zeros(work.layout.total)
