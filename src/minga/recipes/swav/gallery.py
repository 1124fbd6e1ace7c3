"""A sheet that shows what prototypes stand for: for each of some, the held-out pictures that are nearest to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from minga.core.errors import StorageError
from minga.core.files import write_atomically
from minga.recipes.images.grid import grid_png
from minga.recipes.swav.data.picture_set import PictureSet
from minga.recipes.swav.evaluation import embeddings_of, precise_copy
from minga.recipes.swav.model import SwavModel

FILE_NAME: Final = "prototypes.png"
ROWS: Final = 8
COLUMNS: Final = 8
MOST_PICTURES: Final = 2000


def write_gallery(model: SwavModel, training: PictureSet, heldout: PictureSet, directory: Path) -> Path:
    """Write `prototypes.png`, with a row for each of the eight prototypes that most pictures are nearest to.

    Raises `StorageError` if the disk refuses.
    """
    shown = heldout.first(MOST_PICTURES)
    scores = embeddings_of(precise_copy(model, training), shown.pictures) @ model.prototypes.weight.detach().cpu().t()
    counts = torch.bincount(scores.argmax(dim=1), minlength=scores.shape[1])
    chosen = counts.argsort(descending=True, stable=True)[:ROWS]
    pictures, captions = [], []
    for prototype in chosen.tolist():
        for place in scores[:, prototype].topk(min(COLUMNS, len(shown))).indices.tolist():
            pictures.append(shown.pictures[place].expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
            captions.append(f"prototype {prototype}")
    path = directory / FILE_NAME
    try:
        write_atomically(path, grid_png(pictures, captions, columns=min(COLUMNS, len(shown))))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return path
