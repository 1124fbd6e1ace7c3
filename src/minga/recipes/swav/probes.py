"""How much of the classes a simple classifier finds in features: of nearest neighbours, of one labelled picture a
class, and a linear one.

Features are float32 [n, h], labels int64 [n]. All figures are the share of test pictures that are classified right.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

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
