"""The model and its loss: sizes to the last parameter, prototypes of norm 1, equal shares of them, the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import StreamPosition, load_recipe, new_model
from minga.recipes.swav.model import (
    EmbeddingQueue,
    SwavModel,
    assign,
    build_trunk,
    normalize_prototypes,
    normalized,
    sinkhorn,
    swav_loss,
)
from minga.recipes.swav.settings import SwavSettings
from minga.testing import RecipeCase
from tests.worlds.swav_world import SMALL, small_run


def counted(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_paper_s_model_has_28_354_752_parameters_and_resnet_18_has_11_176_512() -> None:
    with torch.device("meta"):
        paper = SwavModel(SwavSettings(size="paper"))
        small = build_trunk(SwavSettings(size="small", crops=[[2, 96, 0.3, 1.0]]))
    assert counted(paper) == 28_354_752
    assert (counted(paper.trunk), counted(paper.head), counted(paper.prototypes)) == (23_508_032, 4_462_720, 384_000)
    assert counted(small) == 11_176_512


def test_small_pictures_get_a_small_stem() -> None:
    shapes = {}
    for side in (64, 65):
        trunk = build_trunk(SwavSettings(crops=[[2, side, 0.4, 1.0]]))
        shapes[side] = tuple(trunk(torch.zeros(1, 1, 28, 28)).last_hidden_state.shape[2:])
    assert shapes == {64: (4, 4), 65: (2, 2)}


def test_prototypes_begin_with_norm_1_and_to_normalise_them_twice_changes_nothing() -> None:
    model = new_model(RecipeCase("swav", SMALL).recipe())
    assert isinstance(model, SwavModel)
    weight = model.prototypes.weight
    assert (weight.norm(dim=1) - 1.0).abs().max() <= 1e-6
    with torch.no_grad():
        weight.mul_(torch.linspace(0.5, 2.0, len(weight)).view(-1, 1))
        weight[3] = 0.0
    normalize_prototypes(model)
    once = weight.detach().clone()
    assert (once.norm(dim=1) - (torch.arange(len(once)) != 3).float()).abs().max() <= 1e-6
    normalize_prototypes(model)
    assert torch.equal(weight, once)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_normalised_to_about_0_and_1(channels: int) -> None:
    pictures = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, channels, 16, 16)
    found = normalized(pictures)
    assert found.dtype == torch.float32
    assert found[0, 0, 0, 0].item() == pytest.approx(-0.449 / 0.226 if channels == 1 else -0.485 / 0.229)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crops": [[1, 28, 0.3, 1.0]]}, "at least two crops"),
        ({"crops": [[2, 28, 0.9, 0.3]]}, "exceeds the largest"),
        ({"crops": [[2, 4, 0.3, 1.0]]}, "crops"),
        ({"size": "huge"}, "size"),
        ({"data": {"source": "hub"}}, "needs name"),
        ({"data": {"source": "digits", "folder": "x"}}, 'for source = "folder" only'),
        ({"micro_batch_size": 8192}, "at most the run's target batch size, 4096"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RecipeCase("swav", settings).recipe()


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        ({"micro_batch_size": 16, "queue": 8}, 16, "queue = 0"),
        ({"micro_batch_size": 16, "size": "paper", "queue": 0}, 16, "travel as arrays"),
        ({"micro_batch_size": 64}, 16, "security.micro_batch_size = 16 must equal it"),
        ({"micro_batch_size": 16}, 16, ""),
    ],
)
def test_what_members_cannot_check_is_refused(settings: dict[str, object], size: int, message: str) -> None:
    security = {"verification": "byzantine", "micro_batch_size": size}
    mapping = {"name": "x", "model": {"recipe": "swav"}, "recipe": {"swav": settings}, "security": security}
    spec = RunSpec.from_mapping(mapping)
    if not message:
        assert load_recipe(spec).fixed_micro_batch_size == 16
        return
    with pytest.raises(ConfigurationError, match=message):
        load_recipe(spec)


def test_settings_are_published_as_the_size_says(tmp_path: Path) -> None:
    settings = SwavSettings(size="paper", epsilon=0.05, data={"source": "folder", "folder": str(tmp_path)})
    assert (settings.prototypes, settings.epsilon, settings.queue, settings.data.packed_size) == (3000, 0.05, 3840, 0)
    assert SwavSettings.model_validate(settings.model_dump()) == settings


# ---- Assignments to prototypes.


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


# ---- The loss.


def model_and_batch(folder: Path, **settings: Any) -> tuple[Any, SwavModel, Any]:
    case, files = small_run(folder, **settings)
    recipe = case.recipe()
    model = new_model(recipe)
    assert isinstance(model, SwavModel)
    return recipe, model, next(recipe.batches(files, StreamPosition("a" * 64), 8))


def test_equals_the_formula_in_float64(tmp_path: Path) -> None:
    recipe, model, batch = model_and_batch(tmp_path)
    with torch.no_grad():
        features = torch.cat([model.features(batch[name]) for name in ("crops_0", "crops_1")])
        embeddings = model.embed(features).double().numpy().reshape(3, 8, 16)
    prototypes = model.prototypes.weight.detach().double().numpy()
    scores = embeddings @ prototypes.T
    logs = scores / 0.1 - np.log(np.exp(scores / 0.1).sum(axis=2, keepdims=True))
    expected = 0.0
    for first in range(2):
        assigned = judge(scores[first], 0.05, 3)
        for other in range(3):
            if other != first:
                expected -= 0.5 * (assigned * logs[other]).sum(axis=1).mean() / 2
    loss = recipe.total_loss(model, batch)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_pictures_of_one_colour_have_a_finite_loss_and_finite_gradients(tmp_path: Path) -> None:
    recipe, model, batch = model_and_batch(tmp_path)
    for level in (0, 128):
        model.zero_grad()
        loss = recipe.total_loss(model, {name: torch.full_like(crops, level) for name, crops in batch.items()})
        loss.backward()
        assert bool(loss.isfinite())
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_the_queue_is_used_from_its_step_on_and_is_not_part_of_the_state(tmp_path: Path) -> None:
    recipe, model, batch = model_and_batch(tmp_path, queue=16, queue_from_step=2)
    names = set(model.state_dict())
    alone = recipe.total_loss(model, batch).item()
    for step in (1, 2):
        recipe.constrain(model, step)
        recipe.total_loss(model, batch)
    assert not model.queues[0].is_full, "one micro-batch came after step 2"
    recipe.total_loss(model, batch)
    assert model.queues[0].is_full
    other = {name: crops.flip(0) // 2 for name, crops in batch.items()}
    expected = swav_loss(model, other, recipe.settings, with_queue=False).item()
    assert recipe.total_loss(model, other).item() != pytest.approx(expected, rel=1e-4)
    assert swav_loss(model, batch, recipe.settings, with_queue=False).item() == alone
    assert set(model.state_dict()) == names
    model.eval()
    kept = model.queues[0].embeddings()
    recipe.loss(model, batch)
    assert model.queues[0].embeddings() is kept, "evaluation does not touch it"


def test_prototypes_rest_in_the_first_steps_only() -> None:
    recipe = RecipeCase("swav", {**SMALL, "freeze_prototypes_steps": 3}).recipe()
    assert [bool(recipe.frozen(step)) for step in range(5)] == [True, True, True, False, False]
    assert all(recipe.decayed(name, each) for name, each in new_model(recipe).named_parameters())


def test_in_half_precision_the_loss_is_float32_and_about_the_same(tmp_path: Path) -> None:
    recipe, model, batch = model_and_batch(tmp_path)
    exact = recipe.total_loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = recipe.total_loss(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
