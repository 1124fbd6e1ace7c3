"""NoPeek: a loss of the client alone, which makes what it sends tell less about its data (2008.09161)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.split.leakage.distance_correlation import distance_correlation

MOST_WEIGHT = 1e6

Penalty = Callable[[Any, Any], Tensor]
"""A loss of a client alone, by its inputs and by what its bottom makes of them."""


@dataclass(frozen=True)
class NoPeek:
    """`weight` times the distance correlation of a batch and of what the bottom makes of it.

    The client adds it to the loss, of which it only gets the gradient: the server does not see it. It depends on how
    the samples of a batch lie to each other, so batches should have 32 samples or more. Weights from 0.3 to 3 suit
    cross entropy; `minga.split.compare_leakage` tries several. The authors' ratio, 1000 to 0.1, is 1e4.
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


def _joined(batch: Any) -> Tensor:
    """One row for each sample, with all its values."""
    if isinstance(batch, Tensor):
        return batch
    tensors = batch.values() if isinstance(batch, Mapping) else batch
    rows = [each if each.is_floating_point() else each.float() for each in tensors]
    return torch.cat([each.reshape(len(each), -1) for each in rows], dim=1)
