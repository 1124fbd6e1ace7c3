"""Labelled samples that come with scikit-learn: pictures of digits, and tables of medical and chemical measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError

EXAMPLES: Final = ("digits", "breast-cancer", "wine")
"""1,797 pictures of 8 by 8 pixels in ten classes; 569 rows of 30 values in two; 178 rows of 13 values in three."""

_DIGIT_RANGE = 16.0


@dataclass(frozen=True)
class LabelledSamples:
    """`inputs`, float32 [n, …], and `labels`, int64 [n], from 0 to `classes` - 1.

    `picture` is (channels, height, width) of samples that are pictures, with values from 0 to 1. Other samples are
    standardised: each value has mean 0 and variance 1.
    """

    inputs: Tensor
    labels: Tensor
    classes: int
    picture: tuple[int, int, int] | None = None

    def rows(self, chosen: Tensor) -> LabelledSamples:
        """Some of the samples, by their numbers, int64."""
        return LabelledSamples(self.inputs[chosen], self.labels[chosen], self.classes, self.picture)


def example_samples(name: str) -> LabelledSamples:
    """All samples of one of `EXAMPLES`, in the order of the package.

    Raises `ConfigurationError` for another name, or if scikit-learn, which holds them, is not installed.
    """
    if name not in EXAMPLES:
        raise ConfigurationError(f'"{name}" is no example of split learning: there are {", ".join(EXAMPLES)}')
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ConfigurationError(
            f'the example "{name}" is in the package scikit-learn, which is not installed: pip install scikit-learn'
        ) from error
    load = {"digits": datasets.load_digits, "breast-cancer": datasets.load_breast_cancer, "wine": datasets.load_wine}
    values, labels = load[name](return_X_y=True)
    inputs, known = torch.from_numpy(values).float(), torch.from_numpy(labels).long()
    classes = int(known.max()) + 1
    if name == "digits":
        return LabelledSamples((inputs / _DIGIT_RANGE).reshape(-1, 1, 8, 8), known, classes, (1, 8, 8))
    return LabelledSamples((inputs - inputs.mean(0)) / inputs.std(0), known, classes)
