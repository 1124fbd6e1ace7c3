"""What a client of a run sends of its pictures: for people to look at."""

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
from minga.recipes.split.taking_part import CLIENT_FILE, split_recipe
from minga.split.computing.parts import ModelPart
from minga.split.no_peek import distance_correlation

SHOWN: Final = 8


@dataclass(frozen=True)
class SeenByServer:
    """Some pictures of the first client, and the activations that it sends of each as a square of grey pixels.
    `correlation` is the distance correlation of all its pictures with what is sent of them.
    """

    labels: list[str]
    originals: Sequence[Pixels]
    sent: Sequence[Pixels]
    correlation: float

    @classmethod
    def of(cls, spec: RunSpec, folder: Path) -> SeenByServer:
        """Of the run of `spec`, whose first client left its part in `folder`. Raises `ConfigurationError` if it is not
        there.
        """
        recipe = split_recipe(spec)
        bottom, _, head = recipe.parts(u_shaped=spec.split.variant == "u-shaped")
        part = ModelPart([bottom] if head is None else [bottom, head], None, spec.optimizer)
        if part.load(folder / CLIENT_FILE) is None:
            raise ConfigurationError(f"{folder}: the client left no part of the model")
        bottom.eval()
        own = recipe.client_samples({}, 0)
        with torch.no_grad():
            sent = bottom(own.inputs)
        labels = sorted(set(own.labels.tolist()))[:SHOWN]
        rows = torch.stack([(own.labels == label).nonzero()[0, 0] for label in labels])
        most = float(sent.abs().quantile(0.99).clamp_min(1e-6))
        return cls(
            [str(label) for label in labels],
            [_grey(each[0]) for each in own.inputs[rows]],
            [_grey(_square(each.flatten() / most)) for each in sent[rows]],
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
