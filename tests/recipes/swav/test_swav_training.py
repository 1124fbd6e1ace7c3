"""SwAV learns: features of digits become better, on one peer and on several of which one dies."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from minga.core.spec.sections import OptimizerSection
from minga.recipes import Recipe, StreamPosition, new_model
from minga.recipes.swav.recipe import SwavRecipe
from minga.testing import RecipeCase
from minga.training.replica.build_optimizer import build_optimizer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("seed", range(3))
def test_the_demo_makes_better_features_of_digits_than_their_pixels(seed: int, tmp_path: Path) -> None:
    """Where one picture of each class has its label; where all have one, pixels are as good."""
    tables = SwavRecipe.demo_spec()
    case = RecipeCase("swav", tables["recipe"]["swav"], seed=seed)
    recipe: Recipe[Any] = case.recipe()
    files, model = case.files(tmp_path), new_model(recipe)
    before, beside = recipe.evaluate(model, files), recipe.show([model], files).beside
    steps = 200
    optimizer = OptimizerSection(**{**tables["optimizer"], "total_steps": steps})
    inner, scheduler = build_optimizer(optimizer, model, recipe.decayed)
    batches = recipe.batches(files, StreamPosition("a" * 64), 128)
    for step in range(steps):
        inner.zero_grad()
        for batch in islice(batches, 2):
            (recipe.total_loss(model, batch) / 2).backward()
        for name, parameter in model.named_parameters():
            if name in recipe.frozen(step):
                parameter.grad = None
        inner.step()
        scheduler.step()
        recipe.constrain(model, step + 1)
    after = recipe.evaluate(model, files)
    print(seed, before, after, beside)
    assert after["heldout_one_label_accuracy"] >= beside["heldout_one_label_accuracy"].value + 0.05
