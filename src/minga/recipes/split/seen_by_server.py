"""What a client of a run sends of its pictures, and what an attacker makes of that: for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.images.loading import Pixels
from minga.recipes.split.part_files import load_part
from minga.recipes.split.taking_part import split_recipe
from minga.split.examples.samples import LabelledSamples
from minga.split.leakage.decoder import PairedSamples, best_decoder
from minga.split.leakage.distance_correlation import distance_correlation
from minga.split.leakage.settings import LeakageSettings
from minga.split.leakage.similarity import structural_similarity

SHOWN: Final = 8
_CHOSEN_BY: Final = 100
"""Samples by which the attacker chooses among decoders, at most; a quarter of a client that has few."""


@dataclass(frozen=True)
class SeenByServer:
    """Some pictures of the first client, the activations that it sends of each as a square of grey pixels, and what a
    decoder rebuilds of them. Of all its pictures, both from 0 to 1: `similarity` is that to what is rebuilt,
    `correlation` the distance correlation with what is sent.
    """

    labels: list[str]
    originals: Sequence[Pixels]
    sent: Sequence[Pixels]
    rebuilt: Sequence[Pixels]
    similarity: float
    correlation: float

    @classmethod
    def of(cls, spec: RunSpec, folder: Path) -> SeenByServer:
        """Of the run of `spec`, whose first client left its part in `folder`. The attacker has that part, and the
        samples of the second client to learn from. Raises `ConfigurationError` if the part is not there.
        """
        recipe = split_recipe(spec)
        bottom = recipe.parts(u_shaped=spec.split.variant == "u-shaped").bottom
        if not load_part(bottom, folder / "bottom.safetensors"):
            raise ConfigurationError(f"{folder}: the client left no part of the model")
        bottom.eval()

        def paired(samples: LabelledSamples) -> PairedSamples:
            with torch.no_grad():
                return PairedSamples(bottom(samples.inputs), samples.inputs)

        own, other = (recipe.client_samples({}, number) for number in range(2))
        few, rest = torch.arange(len(other.labels)).tensor_split([min(_CHOSEN_BY, len(other.labels) // 4)])
        decoder = best_decoder(paired(other.rows(rest)), paired(other.rows(few)), LeakageSettings(), spec.training.seed)
        pairs = paired(own)
        with torch.no_grad():
            rebuilt = decoder(pairs.activations).clamp(0.0, 1.0)
        similarity = float(structural_similarity(pairs.inputs, rebuilt.reshape(pairs.inputs.shape)))
        labels = sorted(set(own.labels.tolist()))[:SHOWN]
        rows = torch.stack([(own.labels == label).nonzero()[0, 0] for label in labels])
        most = float(pairs.activations.abs().quantile(0.99).clamp_min(1e-6))
        return cls(
            [str(label) for label in labels],
            [_grey(each[0]) for each in pairs.inputs[rows]],
            [_grey(_square(each.flatten() / most)) for each in pairs.activations[rows]],
            [_grey(each[0]) for each in rebuilt[rows].reshape(-1, *own.inputs.shape[1:])],
            similarity,
            float(distance_correlation(pairs.inputs, pairs.activations)),
        )


def _square(values: Tensor) -> Tensor:
    """Values as rows of a square that is as small as can be."""
    side = int(np.ceil(values.numel() ** 0.5))
    return torch.nn.functional.pad(values, (0, side * side - values.numel())).reshape(side, side)


def _grey(values: Tensor) -> Pixels:
    """Values from 0 to 1 as grey pixels, uint8 [height, width, 3]."""
    found: Pixels = (values.clamp(0.0, 1.0) * 255).round().to(torch.uint8)[..., None].expand(-1, -1, 3).numpy()
    return found
