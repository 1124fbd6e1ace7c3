"""A picture of original samples above what decoders made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from minga.core import png


def write_sheet(rows: Mapping[str, Tensor], picture: tuple[int, int, int] | None, path: Path) -> None:
    """Write a PNG file with one row of pictures for each name; samples that are no pictures are drawn as strips.

    Each tensor is [n, …], n alike; colours go from the least to the largest value of the first row. Raises
    `StorageError` if the disk refuses.
    """
    first = next(iter(rows.values()))
    low, high = float(first.min()), float(first.max())
    figure = png.blank(1.5 + 0.8 * len(first), 0.4 + 0.9 * len(rows))
    axes = figure.subplots(len(rows), len(first), squeeze=False)
    for (name, samples), line in zip(rows.items(), axes, strict=True):
        for sample, place in zip(samples, line, strict=True):
            place.imshow(_drawn(sample, picture, low, high), cmap="gray", vmin=low, vmax=high, interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    png.write(figure, path)


def _drawn(sample: Tensor, picture: tuple[int, int, int] | None, low: float, high: float) -> np.ndarray:
    if picture is not None and picture[0] in (1, 3):
        values = sample.reshape(picture).permute(1, 2, 0).clamp(low, high).numpy()
        return values[..., 0] if picture[0] == 1 else (values - low) / max(high - low, 1e-9)
    flat = sample.flatten()
    height = int(np.ceil(flat.numel() ** 0.5))
    filled = np.full(height * height, np.nan, dtype=np.float32)
    filled[: flat.numel()] = flat.numpy()
    return filled.reshape(height, height)
