"""What distance correlation finds where there is nothing: that of the same samples in another order.

For few samples it is far from 0: 128 samples of two independent normal distributions of ten dimensions have about 0.47.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minga.split.leakage.distance_correlation import centred_distances, correlation_of

SHARE_BELOW = 0.95
"""The share of the permutations that stay below `PermutedCorrelation.high`."""


@dataclass(frozen=True)
class PermutedCorrelation:
    """A distance correlation, and those of random permutations: their mean, and what 95 % of them stay below."""

    found: float
    mean: float
    high: float

    @property
    def excess(self) -> float:
        """What is found above the mean of the permutations, by what could be: 0 is chance, 1 is the samples moved."""
        return (self.found - self.mean) / (1.0 - self.mean) if self.mean < 1.0 else 0.0


def permuted_correlation(inputs: Tensor, activations: Tensor, permutations: int, seed: int) -> PermutedCorrelation:
    """The distance correlation of two batches [n, …], and those of `permutations` random orders of the second.

    Equal seeds give equal figures. Raises `ValueError` as `distance_correlation` does, or without permutations.
    """
    if permutations < 1:
        raise ValueError("at least one permutation is needed")
    if inputs.shape[:1] != activations.shape[:1]:
        raise ValueError(f"{tuple(inputs.shape)} and {tuple(activations.shape)} are not of the same samples")
    with torch.no_grad():
        centred, others = centred_distances(inputs).double(), centred_distances(activations).double()
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for _ in range(permutations):
            order = torch.randperm(len(others), generator=generator).to(others.device)
            drawn.append(correlation_of(centred, others[order][:, order]))
        by_chance = torch.stack(drawn)
        found = float(correlation_of(centred, others))
        return PermutedCorrelation(found, float(by_chance.mean()), float(by_chance.quantile(SHARE_BELOW)))
