"""Assignments to prototypes: equal shares, whatever the scores, and together with a queue."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from minga.recipes.swav.model import EmbeddingQueue
from minga.recipes.swav.objective import assign, sinkhorn


def scores(samples: int, prototypes: int, seed: int = 0) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    embeddings = functional.normalize(torch.randn(samples, 16, generator=chance), dim=1)
    return embeddings @ functional.normalize(torch.randn(prototypes, 16, generator=chance), dim=1).t()


def judge(values: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """The iteration as SwAV writes it, in float64."""
    found = np.exp((values - values.max()) / epsilon).T
    prototypes, samples = found.shape
    found /= found.sum()
    for _ in range(iterations):
        found /= found.sum(axis=1, keepdims=True) * prototypes
        found /= found.sum(axis=0, keepdims=True) * samples
    return (found * samples).T


@pytest.mark.parametrize("epsilon", [0.05, 0.03])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_the_iteration_in_float64(epsilon: float, iterations: int) -> None:
    given = scores(64, 30)
    expected = judge(given.double().numpy(), epsilon, iterations)
    np.testing.assert_allclose(sinkhorn(given, epsilon, iterations).numpy(), expected, atol=1e-5)


def test_each_sample_is_assigned_once_and_each_prototype_has_the_same_share() -> None:
    given = scores(64, 30)
    few, many = sinkhorn(given, 0.05, 3), sinkhorn(given, 0.05, 50)
    for found in (few, many):
        assert (found.sum(dim=1) - 1.0).abs().max() <= 1e-6
    assert (many.sum(dim=0) - 64 / 30).abs().max() <= 0.01 * 64 / 30
    assert (few.sum(dim=0) - 64 / 30).abs().max() > (many.sum(dim=0) - 64 / 30).abs().max()


@pytest.mark.parametrize("size", [1e4, -1e4, 0.0])
def test_scores_of_any_size_give_finite_assignments(size: float) -> None:
    given = scores(9, 5) * abs(size)
    given[0] = size
    found = sinkhorn(given, 0.03, 3)
    assert bool(found.isfinite().all())
    assert (found.sum(dim=1) - 1.0).abs().max() <= 1e-5


def test_a_queue_is_assigned_together_with_the_micro_batch() -> None:
    chance = torch.Generator().manual_seed(1)
    prototypes = functional.normalize(torch.randn(10, 16, generator=chance), dim=1)
    batches = [functional.normalize(torch.randn(4, 16, generator=chance), dim=1) for _ in range(4)]
    queue = EmbeddingQueue(10)
    for batch in batches[:2]:
        queue.push(batch)
        assert queue.embeddings() is None, "it is used when there are enough"
    queue.push(batches[2])
    kept = queue.embeddings()
    assert kept is not None
    assert torch.equal(kept, torch.cat([batches[2], batches[1], batches[0]])[:10]), "the oldest made room"
    found = assign(batches[3], prototypes, kept, 0.05, 3)
    assert torch.equal(found, sinkhorn(torch.cat([kept, batches[3]]) @ prototypes.t(), 0.05, 3)[-4:])
    assert not torch.allclose(found, assign(batches[3], prototypes, None, 0.05, 3))


def test_a_queue_of_nothing_keeps_nothing() -> None:
    queue = EmbeddingQueue(0)
    queue.push(torch.ones(3, 2))
    assert queue.embeddings() is None
