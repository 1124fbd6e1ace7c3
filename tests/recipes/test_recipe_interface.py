"""What the interface of recipes does by itself: losses in parts, options of sampling, defaults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes import Loss, SampleOptions
from tests.worlds.recipe_text import small_recipe


def test_a_loss_in_parts_is_trained_as_a_whole_and_told_by_the_part_that_the_headline_measures() -> None:
    recipe: Any = small_recipe()
    parts = {"mlm_loss": torch.tensor(2.0), "sop_loss": torch.tensor(1.0)}
    recipe.loss = lambda model, batch: Loss(parts["mlm_loss"] + parts["sop_loss"], parts)
    assert recipe.total_loss(nn.Identity(), {}).item() == 3.0
    assert recipe.headline.name == "heldout_mlm_loss"
    assert recipe.reported_loss(recipe.loss(None, {})).item() == 2.0
    assert recipe.reported_loss(Loss(torch.tensor(5.0), {"other": torch.tensor(1.0)})).item() == 5.0
    assert recipe.reported_loss(torch.tensor(7.0)).item() == 7.0


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("count", 0, "--n 0"), ("top_p", 1.5, "--top-p"), ("temperature", float("nan"), "--temperature nan")],
)
def test_options_of_sampling_have_bounds(option: str, value: float, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SampleOptions(**{option: value})  # type: ignore[arg-type]


def test_a_recipe_without_samples_says_so() -> None:
    recipe = small_recipe()
    with pytest.raises(ConfigurationError, match="the recipe albert draws no samples"):
        recipe.sample(nn.Identity(), {}, ["x"], SampleOptions())
