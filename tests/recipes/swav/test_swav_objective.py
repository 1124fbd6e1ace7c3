"""The loss against its formula, without chance, finite on pictures of one colour, and with a queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minga.recipes import StreamPosition, new_model
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.objective import swav_loss
from tests.recipes.swav.test_swav_assignment import judge
from tests.worlds.swav_world import SMALL, small_run


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


def test_prototypes_rest_in_the_first_steps_only(tmp_path: Path) -> None:
    del tmp_path
    from minga.testing import RecipeCase

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
