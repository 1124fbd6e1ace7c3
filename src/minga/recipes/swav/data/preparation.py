"""What the organiser makes of the pictures: which train, which are held out, and which of them figures are made with.

That follows from the content of each picture alone. Pictures travel in the order of their ranks, so that the first ones
are a random part.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.images.content_rank import content_rank, held_out
from minga.recipes.swav.data.picture_set import PictureSet

TRAINING_FILE: Final = "images.safetensors"
HELDOUT_FILE: Final = "heldout.safetensors"
PROBE_FILE: Final = "probe.safetensors"
"""Training pictures, packed, where training reads files: for the probe."""

MAX_HELDOUT: Final = 5_000
MAX_PROBE: Final = 10_000
FEWEST: Final = 2


def split_pictures(found: PictureSet, heldout_fraction: float) -> tuple[PictureSet, PictureSet]:
    """The pictures to train on, and those held out, at most 5,000. Raises `ConfigurationError` for too few."""
    contents = [picture.numpy().tobytes() for picture in found.pictures]
    kept_out = np.array(held_out(contents, heldout_fraction), dtype=bool)
    order = np.argsort([content_rank(each) for each in contents], kind="stable")
    training, heldout = (torch.from_numpy(order[kept_out[order] == is_out]) for is_out in (False, True))
    if len(training) < FEWEST:
        raise ConfigurationError(f"data: {len(training)} pictures to train on are too few")
    return _take(found, training), _take(found, heldout[:MAX_HELDOUT])


def packed_files(found: PictureSet, heldout_fraction: float) -> dict[str, bytes]:
    """The files of a run that trains on pictures of one size. Raises `ConfigurationError` for too few or too many."""
    training, heldout = split_pictures(found, heldout_fraction)
    files = {TRAINING_FILE: training.pack()}
    if len(heldout):
        files[HELDOUT_FILE] = heldout.pack()
    if len(files[TRAINING_FILE]) > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"data: the pictures take {len(files[TRAINING_FILE]) >> 20} MiB, and {MAX_FILE_BYTES >> 20} MiB at most "
            "can travel with a run; take a smaller packed_size, or publish them as a data set or shards"
        )
    return files


def _take(found: PictureSet, rows: torch.Tensor) -> PictureSet:
    return PictureSet(found.pictures[rows].contiguous(), found.labels[rows].contiguous())
