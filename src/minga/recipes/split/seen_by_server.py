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
from minga.recipes.split.taking_part import load_part, split_recipe
from minga.split.examples.decoder import InvertingDecoder
from minga.split.no_peek import distance_correlation

SHOWN: Final = 8


@dataclass(frozen=True)
class SeenByServer:
    """Some pictures of the first client, the activations that it sends of each as a square of grey pixels, and what a
    decoder rebuilds of them. Of all its pictures: `rebuilt_share` of their variance is in what is rebuilt, and
    `correlation` is their distance correlation with what is sent.
    """

    labels: list[str]
    originals: Sequence[Pixels]
    sent: Sequence[Pixels]
    rebuilt: Sequence[Pixels]
    rebuilt_share: float
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
        own, other = (recipe.client_samples({}, number) for number in range(2))
        with torch.no_grad():
            sent, known = bottom(own.inputs), bottom(other.inputs)
        decoder = InvertingDecoder(known, other.inputs, spec.training.seed)
        labels = sorted(set(own.labels.tolist()))[:SHOWN]
        rows = torch.stack([(own.labels == label).nonzero()[0, 0] for label in labels])
        most = float(sent.abs().quantile(0.99).clamp_min(1e-6))
        with torch.no_grad():
            rebuilt = decoder(sent[rows])
        return cls(
            [str(label) for label in labels],
            [_grey(each[0]) for each in own.inputs[rows]],
            [_grey(_square(each.flatten() / most)) for each in sent[rows]],
            [_grey(each[0]) for each in rebuilt],
            decoder.rebuilt_share(sent, own.inputs),
            float(distance_correlation(own.inputs, sent)),
        )


def _square(values: Tensor) -> Tensor:
    """Values as rows of a square that is as small as can be."""
    side = int(np.ceil(values.numel() ** 0.5))
    return torch.nn.functional.pad(values, (0, side * side - values.numel())).reshape(side, side)


def _grey(values: Tensor) -> Pixels:
    """Values from 0 to 1 as grey pixels, uint8 [height, width, 3]."""
    found: Pixels = (values.clamp(0.0, 1.0) * 255).round().to(torch.uint8)[..., None].expand(-1, -1, 3).numpy()
    return found
