"""Figures on held-out pictures, made on a copy of the model: the loss, and what simple classifiers find in features.

Labels are used here alone. The running statistics of BatchNorm are averages over peers, which lack the variance between
them, so they are estimated anew first, on the first training pictures.
"""

from __future__ import annotations

import copy
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from minga.recipes.swav.batching import array_batch
from minga.recipes.swav.data.picture_set import PictureSet
from minga.recipes.swav.data.preparation import MAX_PROBE
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.objective import swav_loss
from minga.recipes.swav.probes import knn_accuracy, linear_probe_accuracy, renumbered, standardized
from minga.recipes.swav.settings import SwavSettings

STATISTICS_PICTURES: Final = 1024
LOSS_PICTURES: Final = 512
_AT_ONCE: Final = 256
_SEED: Final = 20_210_618


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


@torch.no_grad()
def embeddings_of(model: SwavModel, pictures: Tensor) -> Tensor:
    """The embeddings float32 [n, d], on the CPU, of uint8 [n, c, s, s]."""
    return torch.cat([model.embed(model.features(part)).cpu() for part in _batches(model, pictures)])


def heldout_figures(
    model: SwavModel, settings: SwavSettings, training: PictureSet, heldout: PictureSet
) -> dict[str, float]:
    """`heldout_swav_loss`, and with labels `heldout_probe_accuracy` and `heldout_knn_accuracy`."""
    precise = precise_copy(model, training)
    figures: dict[str, float] = {}
    known = training.first(MAX_PROBE)
    if known.is_labelled and heldout.is_labelled:
        training_features, features = standardized(
            features_of(precise, known.pictures), features_of(precise, heldout.pictures)
        )
        known_labels, labels = renumbered(known.labels, heldout.labels)
        figures["heldout_probe_accuracy"] = linear_probe_accuracy(training_features, known_labels, features, labels)
        figures["heldout_knn_accuracy"] = knn_accuracy(training_features, known_labels, features, labels)
    if len(heldout) > 1:  # the variance of one picture may not exist
        figures["heldout_swav_loss"] = _loss(precise, settings, heldout.pictures[:LOSS_PICTURES])
    return figures


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
    device = next(model.parameters()).device
    return [pictures[start : start + _AT_ONCE].to(device) for start in range(0, len(pictures), _AT_ONCE)]
