"""What a leakage report is about: samples, and a model that is cut in two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minga.core.errors import ConfigurationError

FEWEST_SAMPLES = 40


@dataclass(frozen=True)
class LeakageSubject:
    """Samples and the parts to be trained on them.

    `inputs` are float32 [n, …] with values from 0 to 1 where they are pictures, `labels` int64 [n]. `new_parts` makes
    the bottom and what comes behind it, with parameters by torch's generator. `picture` is (channels, height, width) if
    a sample is a picture, else None.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    new_parts: Callable[[], tuple[nn.Module, nn.Module]]
    picture: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` if samples and labels do not belong together, or are too few."""
        if len(self.inputs) != len(self.labels) or len(self.inputs) < FEWEST_SAMPLES:
            raise ConfigurationError(
                f"{self.name}: {len(self.inputs)} samples and {len(self.labels)} labels: as many of both are needed, "
                f"and at least {FEWEST_SAMPLES}"
            )
        if not bool(self.inputs.isfinite().all()):
            raise ConfigurationError(f"{self.name}: some values of the samples are not finite")


@dataclass(frozen=True)
class Division:
    """Rows of samples, int64, none in two: what is trained on, what choices are made on, and what is reported."""

    training: Tensor
    validation: Tensor
    report: Tensor

    @classmethod
    def of(cls, count: int, validation_share: float, report_share: float, seed: int) -> Division:
        """A division of `count` samples at random; equal seeds give equal ones."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        reported, chosen_on = round(count * report_share), round(count * validation_share)
        return cls(order[reported + chosen_on :], order[reported : reported + chosen_on], order[:reported])
