"""Classifiers on features: right where classes lie apart, at chance where they do not."""

from __future__ import annotations

import torch

from minga.recipes.swav.evaluation import knn_accuracy, linear_probe_accuracy, renumbered, standardized


def blobs(count: int, apart: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    centres = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * apart
    return centres[labels] + torch.randn(count, 6, generator=chance), labels


def test_classes_that_lie_apart_are_found() -> None:
    (training, labels), (test, test_labels) = blobs(400, 5.0, 1), blobs(200, 5.0, 2)
    known, asked = standardized(training, test)
    assert knn_accuracy(known, labels, asked, test_labels) > 0.97
    assert linear_probe_accuracy(known, labels, asked, test_labels) > 0.97


def test_noise_is_classified_by_chance() -> None:
    (training, labels), (test, test_labels) = blobs(400, 0.0, 1), blobs(400, 0.0, 2)
    assert abs(knn_accuracy(training, labels, test, test_labels) - 0.25) < 0.1
    assert abs(linear_probe_accuracy(training, labels, test, test_labels) - 0.25) < 0.1


def test_a_feature_that_never_changes_is_no_harm() -> None:
    training, test = torch.ones(5, 3), torch.ones(2, 3)
    assert all(bool(each.isfinite().all()) for each in standardized(training, test))


def test_labels_are_renumbered_so_that_none_takes_memory_by_its_size() -> None:
    own, others = renumbered(torch.tensor([7, 1_000_000, 7, 3]), torch.tensor([3, 1_000_000, 5, 2_000_000, 7]))
    assert own.tolist() == [1, 2, 1, 0]
    assert others.tolist() == [0, 2, -1, -1, 1]
