"""Distance correlation: how much two sets of vectors, sample for sample, tell about each other (NoPeek, 2008.09161).

For n samples, D_ij is the Euclidean distance of samples i and j; A is D minus the means of its rows and of its columns
plus the mean of all. With A of x and B of z,

    DCOR(x, z) = sqrt( sum A_ij B_ij / sqrt( sum A_ij^2 * sum B_ij^2 ) )

It is 1 if z is x moved, turned or scaled, and 0, for infinitely many samples, just if x and z are independent. Few
samples give far more than 0 even then: compare it with `minga.split.leakage.permutation`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MOST_SAMPLES = 8192
"""Matrices of so many rows and columns are the largest: 256 MiB each in float32."""


def centred_distances(samples: Tensor) -> Tensor:
    """The distances of all pairs of samples, centred by row and column: [n, n] of samples [n, …].

    In float64 for float64, else in float32. Raises `ValueError` for more than `MOST_SAMPLES` samples, or none.
    """
    if samples.ndim == 0 or not 1 <= len(samples) <= MOST_SAMPLES:
        raise ValueError(f"a batch of 1 to {MOST_SAMPLES} samples is expected, not a tensor {tuple(samples.shape)}")
    rows = samples.flatten(1) if samples.ndim > 1 else samples[:, None]
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # By differences: the faster way, by products of matrices, leaves distances on the diagonal, whose gradients are
    # huge. A distance of 0, such as those on the diagonal, passes no gradient on here.
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def correlation_of(centred: Tensor, others: Tensor) -> Tensor:
    """The distance correlation out of two matrices of `centred_distances`; 0 if one of them is all zeros."""
    squared = functional.cosine_similarity(centred.flatten(), others.flatten(), dim=0)
    least = torch.finfo(squared.dtype).eps  # below are rounding errors, where the root has no finite gradient
    return torch.where(squared > least, squared.clamp_min(least).sqrt(), squared * 0.0)


def distance_correlation(inputs: Tensor, activations: Tensor) -> Tensor:
    """The distance correlation of two batches [n, …] of the same n samples: a differentiable scalar from 0 to 1.

    Computed in float64 if a batch is float64, else in float32. Takes n^2 times as many operations as a sample of both
    has values. Raises `ValueError` if the batches differ in length, are empty or have more than `MOST_SAMPLES` samples.
    """
    if inputs.shape[:1] != activations.shape[:1]:
        raise ValueError(f"{tuple(inputs.shape)} and {tuple(activations.shape)} are not of the same samples")
    centred, others = centred_distances(inputs), centred_distances(activations)
    dtype = torch.promote_types(centred.dtype, others.dtype)
    return correlation_of(centred.to(dtype), others.to(dtype))
