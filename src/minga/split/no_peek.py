"""NoPeek: a loss of the client alone, by which what it sends tells less about its data (arXiv 2008.09161).

It is the distance correlation of a batch and its activations: how much two sets of vectors, sample for sample, tell
about each other. For n samples, D_ij is the Euclidean distance of samples i and j; A is D minus the means of its rows
and of its columns plus the mean of all. With A of x and B of z,

    DCOR(x, z) = sqrt( sum A_ij B_ij / sqrt( sum A_ij^2 * sum B_ij^2 ) )

It is 1 if z is x moved, turned or scaled, and 0, for infinitely many samples, just if x and z are independent. Few
samples give far more than 0 even then: 128 samples of two independent normal distributions of ten dimensions have
about 0.47. To see what a value is worth, compare it with that of the same samples in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from minga.core.errors import ConfigurationError

MOST_SAMPLES: Final = 8192
"""Matrices of so many rows and columns are the largest: 256 MiB each in float32."""

MOST_WEIGHT: Final = 1e6

Penalty = Callable[[Any, Any], Tensor]
"""A loss of a client alone, by its inputs and by what its bottom makes of them."""


@dataclass(frozen=True)
class NoPeek:
    """`weight` times the distance correlation of a batch and of what the bottom makes of it.

    The client adds it to the loss, of which it only gets the gradient: the server does not see it. It depends on how
    the samples of a batch lie to each other, so batches should have 32 samples or more. Weights from 0.3 to 3 suit
    cross entropy. The authors' ratio, 1000 to 0.1, is 1e4.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` unless the weight is from 0 to a million."""
        if not (math.isfinite(self.weight) and 0.0 <= self.weight <= MOST_WEIGHT):
            raise ConfigurationError(f"the weight of NoPeek is {self.weight}: it must be from 0 to {MOST_WEIGHT:g}")

    def __call__(self, inputs: Any, activations: Any) -> Tensor:
        """The loss of a batch and of its activations: a scalar. Both are a tensor [n, …], or several, in a tuple, a
        list or a mapping, which count as one.

        Raises `ValueError` as `distance_correlation` does.
        """
        return self.weight * distance_correlation(_joined(inputs).detach(), _joined(activations))


def distance_correlation(inputs: Tensor, activations: Tensor) -> Tensor:
    """The distance correlation of two batches [n, …] of the same n samples: a differentiable scalar from 0 to 1; 0 if
    all samples of one of them are alike.

    Computed in float64 if a batch is float64, else in float32. Takes n^2 times as many operations as a sample of both
    has values. Raises `ValueError` if the batches differ in length, are empty or have more than `MOST_SAMPLES` samples.
    """
    if inputs.shape[:1] != activations.shape[:1]:
        raise ValueError(f"{tuple(inputs.shape)} and {tuple(activations.shape)} are not of the same samples")
    centred, others = _centred_distances(inputs), _centred_distances(activations)
    dtype = torch.promote_types(centred.dtype, others.dtype)
    squared = functional.cosine_similarity(centred.to(dtype).flatten(), others.to(dtype).flatten(), dim=0)
    least = torch.finfo(dtype).eps  # below are rounding errors, where the root has no finite gradient
    return torch.where(squared > least, squared.clamp_min(least).sqrt(), squared * 0.0)


def _centred_distances(samples: Tensor) -> Tensor:
    """The distances of all pairs of samples [n, …], centred by row and column: [n, n]."""
    if samples.ndim == 0 or not 1 <= len(samples) <= MOST_SAMPLES:
        raise ValueError(f"a batch of 1 to {MOST_SAMPLES} samples is expected, not a tensor {tuple(samples.shape)}")
    rows = samples.flatten(1) if samples.ndim > 1 else samples[:, None]
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # By differences: the faster way, by products of matrices, leaves distances on the diagonal, whose gradients are
    # huge. A distance of 0, such as those on the diagonal, passes no gradient on here.
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def _joined(batch: Any) -> Tensor:
    """One row for each sample, with all its values."""
    if isinstance(batch, Tensor):
        return batch
    tensors = batch.values() if isinstance(batch, Mapping) else batch
    rows = [each if each.is_floating_point() else each.float() for each in tensors]
    return torch.cat([each.reshape(len(each), -1) for each in rows], dim=1)
