"""Which training pictures a model takes to be most like a held-out one: for people to judge its features by eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from minga.recipes.images.loading import Pixels
from minga.recipes.interface import Exhibit, Shown
from minga.recipes.swav.data.picture_set import PictureSet
from minga.recipes.swav.evaluation import features_of, precise_copy
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.probes import standardized

ROWS: Final = 10
NEAREST: Final = 4
MOST_PICTURES: Final = 5000


def nearest_pictures(models: Sequence[SwavModel], training: PictureSet, heldout: PictureSet) -> list[Shown]:
    """Held-out pictures, each with the training pictures that for each model are nearest by the cosine of their
    features, the nearest first.

    If there are classes, these are one picture of each: nothing else tells the model what a class looks like.
    """
    known, asked = training.first(MOST_PICTURES), heldout.first(ROWS)
    if training.is_labelled and heldout.is_labelled:
        known, asked = _one_of_each(training), _one_of_each(heldout)
    near = torch.stack([_nearest(precise_copy(model, training), training, asked, known) for model in models], dim=1)
    return [
        Shown(
            _view(asked.pictures[row : row + 1], asked.labels[row : row + 1]),
            tuple(_view(known.pictures[each], known.labels[each]) for each in places),
        )
        for row, places in enumerate(near)
    ]


def _nearest(model: SwavModel, training: PictureSet, asked: PictureSet, known: PictureSet) -> Tensor:
    """The places in `known` of those that are nearest to each of `asked`, int64 [n, 4] or fewer."""
    every = features_of(model, training.first(MOST_PICTURES).pictures)
    (_, own), (_, theirs) = (standardized(every, features_of(model, some.pictures)) for some in (asked, known))
    alike = functional.normalize(own, dim=1) @ functional.normalize(theirs, dim=1).t()
    return alike.topk(min(NEAREST, len(known)), dim=1).indices


def _one_of_each(found: PictureSet) -> PictureSet:
    rows = torch.stack([(found.labels == label).nonzero()[0, 0] for label in sorted(set(found.labels.tolist()))[:ROWS]])
    return PictureSet(found.pictures[rows], found.labels[rows])


def _view(pictures: Tensor, labels: Tensor) -> Exhibit:
    """Pictures uint8 [n, c, s, s] in a row, and their classes, if they have some."""
    side: Pixels = torch.cat(list(pictures.expand(-1, 3, -1, -1)), dim=2).permute(1, 2, 0).contiguous().numpy()
    return Exhibit(" ".join(str(label) for label in labels.tolist() if label >= 0), side)
