"""Small runs of the SwAV recipe, on digits of scikit-learn and on pictures that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from minga.recipes.swav.pictures import PictureSet, packed_files
from minga.testing import RecipeCase

SMALL: dict[str, Any] = {
    "crops": [[2, 16, 0.3, 1.0], [1, 8, 0.1, 0.4]],
    "prototypes": 12,
    "head": [32, 16],
    "epsilon": 0.05,
    "flip": 0.5,
    "jitter": 0.8,
    "blur": 0.5,
    "micro_batch_size": 8,
    "data": {"source": "digits"},
}
"""A small model on 8x8 digits, whose steps take milliseconds."""


def small_run(folder: Path, **settings: Any) -> tuple[RecipeCase, dict[str, Path]]:
    """A case of the small run, with `settings` besides, and its files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    case = RecipeCase("swav", {**SMALL, **settings})
    return case, case.files(folder)


def few_pictures(folder: Path, **settings: Any) -> tuple[RecipeCase, dict[str, Path]]:
    """The same on 90 made-up pictures instead of 1,797 digits, for tests of what figures do not depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, body in packed_files(made_up(90, side=8, channels=1), 0.2).items():
        files[name] = folder / name
        files[name].write_bytes(body)
    return RecipeCase("swav", {**SMALL, **settings}), files


def made_up(count: int, side: int = 12, channels: int = 3, seed: int = 0) -> PictureSet:
    """Pictures of noise around one colour for each of three classes."""
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    colours = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200]])[labels][:, :channels]
    noise = chance.integers(-40, 41, (count, channels, side, side))
    pictures = np.clip(colours[:, :, None, None] + noise, 0, 255).astype(np.uint8)
    return PictureSet(torch.from_numpy(pictures), torch.from_numpy(labels))
