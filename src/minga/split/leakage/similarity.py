"""Structural similarity of pictures (Wang et al. 2004): nearer to what people see than the mean squared error is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_WINDOW, _SIGMA = 11, 1.5
_MEAN_CONSTANT, _VARIANCE_CONSTANT = 0.01**2, 0.03**2


def structural_similarity(pictures: Tensor, others: Tensor) -> Tensor:
    """The mean structural similarity of two batches [n, channels, height, width] with values from 0 to 1.

    1 for equal pictures. Windows have 11 pixels a side with Gaussian weights (sigma 1.5), or as many as fit, an odd
    number; they lie wholly inside the pictures. Raises `ValueError` for shapes that differ or have no four dimensions.
    """
    if pictures.shape != others.shape or pictures.ndim != 4:
        raise ValueError(f"pictures {tuple(pictures.shape)} and {tuple(others.shape)} cannot be compared")
    side = min(_WINDOW, *pictures.shape[2:])
    places = torch.arange(side - 1 + side % 2, dtype=pictures.dtype, device=pictures.device)
    weights = torch.exp(-((places - places.mean()) ** 2) / (2 * _SIGMA**2))
    window = torch.outer(weights, weights)
    window = (window / window.sum())[None, None]

    def mean(values: Tensor) -> Tensor:
        return functional.conv2d(values.flatten(0, 1)[:, None], window)

    one, two = mean(pictures), mean(others)
    variances = mean(pictures * pictures) - one * one + mean(others * others) - two * two
    covariance = mean(pictures * others) - one * two
    means = (2 * one * two + _MEAN_CONSTANT) / (one * one + two * two + _MEAN_CONSTANT)
    return (means * (2 * covariance + _VARIANCE_CONSTANT) / (variances + _VARIANCE_CONSTANT)).mean()
