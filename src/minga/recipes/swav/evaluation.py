"""Figures on held-out pictures, made on a copy of the model: the loss, and what simple classifiers find in features.

Labels are used here alone. The running statistics of BatchNorm are averages over peers, which lack the variance between
them, so they are estimated anew first, on the first training pictures.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.swav.batching import array_batch
from minga.recipes.swav.data.picture_set import PictureSet
from minga.recipes.swav.data.preparation import MAX_PROBE
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.objective import swav_loss
from minga.recipes.swav.probes import (
    knn_accuracy,
    linear_probe_accuracy,
    one_label_accuracy,
    renumbered,
    standardized,
)
from minga.recipes.swav.settings import SwavSettings

STATISTICS_PICTURES: Final = 1024
LOSS_PICTURES: Final = 512
_AT_ONCE: Final = 256
_SEED: Final = 20_210_618
COLLAPSED: Final = 0.005
"""How near the loss is to that of a constant answer, as a share of it, where a model gives one."""


def precise_copy(model: SwavModel, training: PictureSet) -> SwavModel:
    """A copy, to be evaluated, with statistics of 1,024 training pictures, whatever those of `model` are."""
    copied = copy.deepcopy(model).train()
    norms = [each for each in copied.modules() if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
    if norms:
        with torch.no_grad():
            for pictures in _batches(copied, training.first(STATISTICS_PICTURES).pictures):
                if len(pictures) > 1:
                    copied.embed(copied.features(pictures))
    return copied.eval()


@torch.no_grad()
def features_of(model: SwavModel, pictures: Tensor) -> Tensor:
    """The features float32 [n, h], on the CPU, of uint8 [n, c, s, s]."""
    return torch.cat([model.features(part).float().cpu() for part in _batches(model, pictures)])


def heldout_figures(
    model: SwavModel, settings: SwavSettings, training: PictureSet, heldout: PictureSet
) -> dict[str, float]:
    """`heldout_swav_loss`, and with labels those of `class_figures`."""
    precise = precise_copy(model, training)
    figures: dict[str, float] = {}
    known = training.first(MAX_PROBE)
    if known.is_labelled and heldout.is_labelled:
        figures |= class_figures(
            known, heldout, features_of(precise, known.pictures), features_of(precise, heldout.pictures)
        )
    if len(heldout) > 1:  # the variance of one picture may not exist
        figures["heldout_swav_loss"] = _loss(precise, settings, heldout.pictures[:LOSS_PICTURES])
    return figures


def class_figures(training: PictureSet, heldout: PictureSet, known: Tensor, asked: Tensor) -> dict[str, float]:
    """`heldout_one_label_accuracy`, `heldout_probe_accuracy` and `heldout_knn_accuracy` of features float32 [n, h] of
    labelled pictures, `known` those to learn from, `asked` the held-out ones.
    """
    (known, asked), (labels, wanted) = standardized(known, asked), renumbered(training.labels, heldout.labels)
    return {
        "heldout_one_label_accuracy": one_label_accuracy(known, labels, asked, wanted),
        "heldout_probe_accuracy": linear_probe_accuracy(known, labels, asked, wanted),
        "heldout_knn_accuracy": knn_accuracy(known, labels, asked, wanted),
    }


def is_collapsed(figures: Mapping[str, float], prototypes: int) -> bool:
    """Whether the loss is that of a model that gives all pictures the same answer, each prototype alike."""
    loss, constant = figures.get("heldout_swav_loss", math.inf), math.log(prototypes)
    return abs(loss - constant) < COLLAPSED * constant


@torch.no_grad()
def _loss(model: SwavModel, settings: SwavSettings, pictures: Tensor) -> float:
    """As in training: on crops, the same each time, and with the statistics of each micro-batch."""
    model.train()
    chance = np.random.default_rng(_SEED)
    size = min(settings.micro_batch_size, len(pictures))
    device = next(model.parameters()).device
    found = []
    for start in range(0, len(pictures) - size + 1, size):
        part = pictures[start : start + size]
        batch = array_batch(settings, part, chance)
        on_device = {name: crops.to(device) for name, crops in batch.items()}
        found.append(float(swav_loss(model, on_device, settings, with_queue=False)))
    return sum(found) / len(found)


def _batches(model: SwavModel, pictures: Tensor) -> list[Tensor]:
    """Pictures as large as those that training shows: what a trunk finds depends on it."""
    device = next(model.parameters()).device
    parts = [pictures[start : start + _AT_ONCE].to(device) for start in range(0, len(pictures), _AT_ONCE)]
    return [scaled(part, model.side) for part in parts]


def scaled(pictures: Tensor, side: int) -> Tensor:
    """Pictures uint8 [n, c, h, w] with `side` pixels a side."""
    if pictures.shape[2:] == (side, side):
        return pictures
    larger = functional.interpolate(pictures.float(), size=(side, side), mode="bilinear", antialias=True)
    return larger.round().clamp(0.0, 255.0).to(torch.uint8)
