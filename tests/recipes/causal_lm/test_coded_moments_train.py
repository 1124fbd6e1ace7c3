"""Moments of 8 bits train a language model as well as those of 32."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from minga.core.spec.run_spec import RunSpec
from minga.recipes import Recipe, load_recipe, new_model
from minga.recipes.interface import StreamPosition
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.language_models import TEXT, prepared
from tests.worlds.recipe_text import ALICE

STEPS, BATCH = 300, 8
OPTIMIZER = {"learning_rate": 0.02, "warmup_steps": 10, "schedule": "constant", "weight_decay": 0.01}


def heldout_loss(folder: Path, bits: int) -> float:
    """The held-out loss, in nats, of the tiny causal language model after `STEPS` updates of LAMB."""
    table = {"size": "tiny", "max_length": 128, "data": TEXT}
    spec = RunSpec.from_mapping(
        {
            "name": "bits",
            "model": {"recipe": "causal-lm"},
            "recipe": {"causal-lm": table},
            "optimizer": {**OPTIMIZER, "name": "lamb", "state_bits": bits},
        }
    )
    recipe: Recipe[Any] = load_recipe(spec)
    files, model = prepared(recipe, folder), new_model(recipe)
    optimizer, scheduler = build_optimizer(spec.optimizer, model, recipe.decayed)
    for batch in itertools.islice(recipe.batches(files, StreamPosition(ALICE), BATCH), STEPS):
        optimizer.zero_grad()
        recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return recipe.evaluate(model, files)["heldout_loss"]


@pytest.mark.soak
def test_eight_bits_lead_to_the_loss_of_thirty_two(tmp_path: Path) -> None:
    whole, coded = heldout_loss(tmp_path / "whole", 32), heldout_loss(tmp_path / "coded", 8)
    assert whole < 6.0  # it learns: without training the loss is that of guessing, 9.0
    assert abs(coded / whole - 1.0) < 0.01, (whole, coded)
