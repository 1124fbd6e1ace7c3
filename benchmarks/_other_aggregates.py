"""Robust means that CenteredClip is compared with; members of a secure run could not verify any of them.

Each takes the rows of one step, float32 [n, numel] and finite, and the number of hostile ones that it is made for, or
as many of these as it can bear. It gives float32 [numel].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from minga.security.robust.geometric_median import geometric_median
from minga.security.robust.rows import Gram, Rows, double_sum

Aggregation = Callable[[torch.Tensor, int], torch.Tensor]


def mean(rows: torch.Tensor, _: int) -> torch.Tensor:
    """What averaging does without any defence: one hostile row moves it anywhere."""
    return rows.mean(0)


def coordinate_median(rows: torch.Tensor, _: int) -> torch.Tensor:
    """The median of each coordinate, the middle between both where there are two (Yin et al. 2018)."""
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def trimmed_mean(rows: torch.Tensor, hostile: int) -> torch.Tensor:
    """The mean of each coordinate without its `hostile` largest and its `hostile` smallest values (Yin et al. 2018)."""
    cut = min(hostile, (len(rows) - 1) // 2)
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)


def geometric_median_of(rows: torch.Tensor, _: int) -> torch.Tensor:
    """The point with the least sum of distances to all rows (RFA: Pillutla, Kakade, Harchaoui 2022)."""
    arranged = Rows(rows.unbind())
    found = geometric_median(Gram.double(arranged), smoothing=1e-3, tolerance=1e-6)
    return double_sum(arranged, found.coefficients)[0]


def krum(rows: torch.Tensor, hostile: int) -> torch.Tensor:
    """The row whose `n - hostile - 2` nearest neighbours are nearest (Blanchard et al. 2017)."""
    return _krum(rows, hostile, 1)


def multi_krum(rows: torch.Tensor, hostile: int) -> torch.Tensor:
    """The mean of as many rows as there are honest ones, those that Krum would take first."""
    return _krum(rows, hostile, max(1, len(rows) - hostile))


def _krum(rows: torch.Tensor, hostile: int, chosen: int) -> torch.Tensor:
    bearable = max(0, min(hostile, (len(rows) - 3) // 2))
    arranged = Rows(rows.unbind())
    distances = Gram.double(arranged).squared_distances
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, : len(rows) - bearable - 2].sum(1)
    coefficients = np.zeros(len(rows))
    coefficients[np.argsort(scores, kind="stable")[:chosen]] = 1.0 / chosen
    return double_sum(arranged, coefficients)[0]


OTHERS: dict[str, Aggregation] = {
    "mean": mean,
    "coordinate_median": coordinate_median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median_of,
    "krum": krum,
    "multi_krum": multi_krum,
}
"""By their names."""
