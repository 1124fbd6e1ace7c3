"""Which parts of pictures crops show: boxes of random area, shape and place, in whole pixels.

Equal on every machine: chance is NumPy's, and of all functions only the square root is used, which every processor
rounds alike. So the ratios of a crop's sides, evenly spaced in their logarithms, are a table.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

RATIOS: Final = np.array(
    [
        (0.7500, 0.7636, 0.7775, 0.7916, 0.8059, 0.8205, 0.8354, 0.8506, 0.8660, 0.8817, 0.8977),
        (0.9140, 0.9306, 0.9475, 0.9647, 0.9822, 1.0000, 1.0181, 1.0366, 1.0554, 1.0746, 1.0941),
        (1.1139, 1.1341, 1.1547, 1.1756, 1.1970, 1.2187, 1.2408, 1.2633, 1.2862, 1.3096, 1.3333),
    ]
).ravel()
"""Width by height, from 3/4 to 4/3."""

ATTEMPTS: Final = 10


def crop_boxes(
    chance: np.random.Generator, count: int, height: int, width: int, low: float, high: float
) -> npt.NDArray[np.int64]:
    """Boxes int64 [count, 4]: top, left, height and width within a picture of the given size.

    The area is uniform from `low` to `high` of the picture's. A box that does not fit is drawn again, ten times at
    most; then the largest centred box of an allowed ratio is taken.
    """
    shape = (ATTEMPTS, count)
    areas = (low + (high - low) * chance.random(shape)) * (height * width)
    ratios = RATIOS[chance.integers(0, len(RATIOS), shape)]
    heights, widths = (np.rint(np.sqrt(each)).astype(np.int64) for each in (areas / ratios, areas * ratios))
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, every = fits.argmax(axis=0), np.arange(count)
    found = fits[first, every]
    tallest, widest = _largest(height, width)
    high_side = np.where(found, heights[first, every], tallest)
    wide_side = np.where(found, widths[first, every], widest)
    tops = np.where(found, chance.integers(0, height - high_side + 1), (height - tallest) // 2)
    lefts = np.where(found, chance.integers(0, width - wide_side + 1), (width - widest) // 2)
    return np.stack([tops, lefts, high_side, wide_side], axis=1)


def _largest(height: int, width: int) -> tuple[int, int]:
    """The largest height and width of a box whose ratio is allowed."""
    return min(height, max(1, width * 4 // 3)), min(width, max(1, height * 4 // 3))
