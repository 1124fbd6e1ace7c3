"""Which samples a leakage report trains on, chooses by, and measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_REPORT_SEED = 0


@dataclass(frozen=True)
class SampleDivision:
    """Rows of samples, int64, none in two: what is trained on, what choices are made on, and what is reported."""

    training: Tensor
    validation: Tensor
    report: Tensor

    @classmethod
    def of(cls, count: int, validation_share: float, report_share: float, seed: int) -> SampleDivision:
        """A division of `count` samples at random; equal seeds give equal ones.

        What is reported is the same for every seed, so that no choice that is made with one seed has seen what is
        reported with another.
        """
        order = torch.randperm(count, generator=torch.Generator().manual_seed(_REPORT_SEED))
        reported, chosen_on = round(count * report_share), round(count * validation_share)
        others = order[reported:]
        others = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))]
        return cls(others[chosen_on:], others[:chosen_on], order[:reported])
