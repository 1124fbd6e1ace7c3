"""What the tests of language models share: small models of several architectures on a short real text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.recipes import Recipe, load_recipe, new_model
from minga.recipes.interface import StreamPosition
from minga.testing import RecipeCase
from tests.worlds.recipe_text import ALICE, GENESIS

TEXT: Final = {"source": "files", "files": [str(GENESIS)], "heldout_fraction": 0.1}
SMALL: Final = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
_USUAL: Final[Mapping[str, Any]] = {"max_length": 32, "vocabulary_size": 400, "data": TEXT}
CASES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "gpt2": ("causal-lm", {"architecture": "gpt2", "overrides": {"hidden_size": 32, "num_hidden_layers": 2}}),
    "llama": ("causal-lm", {"overrides": {**SMALL, "head_dim": 8}, "packing": "document"}),
    "qwen3": ("causal-lm", {"architecture": "qwen3", "overrides": {**SMALL, "head_dim": 8}, "packing": "best-fit"}),
    "bert": ("masked-lm", {"overrides": SMALL, "objective": "mlm+sop", "packing": "pairs"}),
    "roberta": ("masked-lm", {"architecture": "roberta", "overrides": SMALL, "tokenizer": "train:bpe"}),
    "modernbert": ("masked-lm", {"architecture": "modernbert", "overrides": SMALL, "tokenizer": "train:unigram"}),
}
"""A recipe and its settings for each architecture, at two layers."""


def case(architecture: str, /, **settings: Any) -> RecipeCase:
    """One of `CASES` for the conformance suite, with other settings besides or instead."""
    recipe, own = CASES[architecture]
    return RecipeCase(recipe, {**_USUAL, **own, **settings})


def language_recipe(architecture: str, /, **settings: Any) -> Recipe[Any]:
    """The recipe of one of `CASES`."""
    return case(architecture, **settings).recipe()


def prepared(recipe: Recipe[Any], folder: Path) -> dict[str, Path]:
    """What the organiser prepares, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = recipe.prepare()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in files}


def published(recipe: Recipe[Any], **model: Any) -> Recipe[Any]:
    """The recipe as peers get it, who have neither the organiser's folders nor the hub."""
    settings = recipe.published_settings().model_dump(mode="json")
    for name in ("config_from",):
        settings[name] = ""
    settings["data"]["files"] = []
    name = recipe.context.recipe
    values = {"name": "x", "model": {"recipe": name, **model}, "recipe": {name: settings}, "training": {"seed": 3}}
    return load_recipe(RunSpec.from_mapping(values))


def train(architecture: str, folder: Path, steps: int, *, bfloat16: bool = False) -> float:
    """The held-out loss after some steps of 8 samples."""
    recipe = language_recipe(architecture)
    files, model = prepared(recipe, folder), new_model(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for batch in itertools.islice(recipe.batches(files, StreamPosition(ALICE), 8), steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if bfloat16 else nullcontext():
            loss = recipe.total_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return recipe.evaluate(model, files)["heldout_loss"]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all gradients by name."""
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
