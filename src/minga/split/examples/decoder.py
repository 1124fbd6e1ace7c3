"""An attack on a client's bottom: a network that is trained to turn activations back into inputs.

The attacker has the bottom, or pairs of inputs and activations from a client that gives them away: that is more than an
honest server has. It is one attack of many: what it does not find is not proven to be hidden.
"""

from __future__ import annotations

import copy
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH: Final = 256
EPOCHS: Final = 60
BATCH: Final = 64
LEARNING_RATE: Final = 2e-3
CHOSEN_BY: Final = 0.1
"""Share of the samples on which the attacker does not train; by them it chooses the epoch at which it stops."""

DEAD: Final = 1e-3
"""Activations that vary by less than this share of the one that varies most are not scaled up to the others."""

FARTHEST: Final = 4.0
"""Standard deviations from the mean at which activations are cut off: else a few unusual samples would make the attack
look weaker than it is.
"""


class InvertingDecoder(nn.Module):
    """Two hidden layers from standardised activations [n, …] to inputs [n, …]; trained on those given, by the seed."""

    def __init__(self, activations: Tensor, inputs: Tensor, seed: int) -> None:
        super().__init__()
        given, wanted = activations.flatten(1), inputs.flatten(1)
        self._middle, spread = given.mean(0), given.std(0)
        self._spread = spread.clamp_min(max(DEAD * float(spread.max()), 1e-12))
        self._shape = inputs.shape[1:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            last = nn.Linear(WIDTH, wanted.shape[1])
            with torch.no_grad():  # begin with the mean of the inputs, the best guess without activations
                last.bias.copy_(wanted.mean(0))
            self._layers = nn.Sequential(
                nn.Linear(given.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), last
            )
            self._fit(activations, inputs)
        self.eval()

    def forward(self, activations: Tensor) -> Tensor:
        """The inputs that the activations [n, …] are taken to be of."""
        standardised = (activations.flatten(1) - self._middle) / self._spread
        found: Tensor = self._layers(standardised.clamp(-FARTHEST, FARTHEST))
        return found.reshape(-1, *self._shape)

    def rebuilt_share(self, activations: Tensor, inputs: Tensor) -> float:
        """The share of the variance of inputs that the decoder rebuilds: 1 is all, a guess of their mean has 0."""
        with torch.no_grad():
            error = functional.mse_loss(self(activations), inputs)
        return 1.0 - float(error / (inputs - inputs.mean(0)).square().mean())

    def _fit(self, activations: Tensor, inputs: Tensor) -> None:
        order = torch.randperm(len(inputs))
        chosen_by, known = order.tensor_split([max(1, round(CHOSEN_BY * len(order)))])
        optimizer = torch.optim.Adam(self._layers.parameters(), lr=LEARNING_RATE)
        best, best_state = float("inf"), copy.deepcopy(self._layers.state_dict())
        for _ in range(EPOCHS):
            for rows in torch.split(known[torch.randperm(len(known))], BATCH):
                optimizer.zero_grad()
                functional.mse_loss(self(activations[rows]), inputs[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                error = float(functional.mse_loss(self(activations[chosen_by]), inputs[chosen_by]))
            if error < best:
                best, best_state = error, copy.deepcopy(self._layers.state_dict())
        self._layers.load_state_dict(best_state)
