"""Figures on held-out pictures, made on a copy of the model: the loss, and what simple classifiers find in features.

Labels are used here alone. The running statistics of BatchNorm are averages over peers, which lack the variance between
them, so they are estimated anew first, on the first training pictures.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.images.loading import Pixels
from minga.recipes.interface import Exhibit, Shown
from minga.recipes.swav.crops import array_batch
from minga.recipes.swav.model import SwavModel, swav_loss
from minga.recipes.swav.pictures import MAX_PROBE, PictureSet
from minga.recipes.swav.settings import SwavSettings

# ---- How much of the classes a simple classifier finds in features: of nearest neighbours, of one labelled picture a
# class, and a linear one.
#
# Features are float32 [n, h], labels int64 [n]. All figures are the share of test pictures that are classified right.


NEIGHBOURS: Final = 20
TEMPERATURE: Final = 0.07
_AT_ONCE: Final = 1024
_ITERATIONS: Final = 60
_DRAWS: Final = 10
_DECAY: Final = 1e-4


def standardized(training: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both, shifted and scaled so that each feature of `training` has mean 0 and deviation 1."""
    mean, deviation = training.mean(dim=0), training.std(dim=0, correction=0).clamp_min(1e-6)
    return (training - mean) / deviation, (test - mean) / deviation


def renumbered(training: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Labels as numbers of the classes that `training` has, however large they are; -1 for classes that it lacks."""
    classes, own = torch.unique(training, return_inverse=True)
    places = torch.searchsorted(classes, test).clamp_max(len(classes) - 1)
    return own, torch.where(classes[places] == test, places, torch.full_like(places, -1))


@torch.no_grad()
def knn_accuracy(training: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """By the 20 nearest by cosine s, each with the weight e^(s / 0.07) (Wu et al. 2018, arXiv:1805.01978)."""
    known, classes = functional.normalize(training, dim=1), int(labels.max()) + 1
    right = 0
    for start in range(0, len(test), _AT_ONCE):
        asked = functional.normalize(test[start : start + _AT_ONCE], dim=1)
        near, places = (asked @ known.t()).topk(min(NEIGHBOURS, len(known)), dim=1)
        votes = torch.zeros(len(asked), classes, device=near.device)
        votes.scatter_add_(1, labels[places], ((near - near[:, :1]) / TEMPERATURE).exp())
        right += int((votes.argmax(dim=1) == test_labels[start : start + _AT_ONCE]).sum())
    return right / len(test)


def one_label_accuracy(training: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """By the nearest, by cosine, of one picture of each class: the mean of ten draws of these, always the same ones.

    It asks what features are worth where nearly nothing is labelled, which is what they are learned for.
    """
    known, asked = functional.normalize(training, dim=1), functional.normalize(test, dim=1)
    chance, found = torch.Generator().manual_seed(0), []
    for _ in range(_DRAWS):
        order = torch.randperm(len(labels), generator=chance).to(labels.device)
        rows = torch.stack([order[(labels[order] == label).nonzero()[0, 0]] for label in range(int(labels.max()) + 1)])
        found.append(float(((asked @ known[rows].t()).argmax(dim=1) == test_labels).float().mean()))
    return sum(found) / len(found)


def linear_probe_accuracy(training: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """By multinomial logistic regression, fitted by 60 iterations of L-BFGS with weight decay 1e-4."""
    classes = int(labels.max()) + 1
    weight = torch.zeros(classes, training.shape[1], device=training.device, requires_grad=True)
    bias = torch.zeros(classes, device=training.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = _DECAY * weight.square().sum()
        loss = functional.cross_entropy(nn.functional.linear(training, weight, bias), labels) + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found = nn.functional.linear(test, weight, bias).argmax(dim=1)
    return float((found == test_labels).float().mean())


STATISTICS_PICTURES: Final = 1024
LOSS_PICTURES: Final = 512
_EVALUATION_AT_ONCE: Final = 256
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
    parts = [
        pictures[start : start + _EVALUATION_AT_ONCE].to(device)
        for start in range(0, len(pictures), _EVALUATION_AT_ONCE)
    ]
    return [scaled(part, model.side) for part in parts]


def scaled(pictures: Tensor, side: int) -> Tensor:
    """Pictures uint8 [n, c, h, w] with `side` pixels a side."""
    if pictures.shape[2:] == (side, side):
        return pictures
    larger = functional.interpolate(pictures.float(), size=(side, side), mode="bilinear", antialias=True)
    return larger.round().clamp(0.0, 255.0).to(torch.uint8)


# ---- Which training pictures a model takes to be most like a held-out one: for people to judge its features by eye.


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
