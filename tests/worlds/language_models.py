"""What the tests of language models share: small models of several architectures on a short real text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.recipes import Recipe, load_recipe
from minga.testing import RecipeCase
from tests.worlds.recipe_text import GENESIS

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
_PREPARED: Final[dict[str, Mapping[str, bytes]]] = {}


def case(architecture: str, /, **settings: Any) -> RecipeCase:
    """One of `CASES` for the conformance suite, with other settings besides or instead."""
    recipe, own = CASES[architecture]
    return RecipeCase(recipe, {**_USUAL, **own, **settings})


def language_recipe(architecture: str, /, **settings: Any) -> Recipe[Any]:
    """The recipe of one of `CASES`."""
    return case(architecture, **settings).recipe()


def prepared(recipe: Recipe[Any], folder: Path) -> dict[str, Path]:
    """What the organiser prepares, in a folder; equal settings once for all tests."""
    folder.mkdir(parents=True, exist_ok=True)
    said = f"{recipe.context.recipe} {recipe.settings.model_dump_json()}"
    if said not in _PREPARED:
        _PREPARED[said] = recipe.prepare()
    for name, content in _PREPARED[said].items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in _PREPARED[said]}


def published(recipe: Recipe[Any], **model: Any) -> Recipe[Any]:
    """The recipe as peers get it, who have neither the organiser's folders nor the hub."""
    settings = recipe.published_settings().model_dump(mode="json")
    for name in ("config_from",):
        settings[name] = ""
    settings["data"]["files"] = []
    name = recipe.context.recipe
    values = {"name": "x", "model": {"recipe": name, **model}, "recipe": {name: settings}, "training": {"seed": 3}}
    return load_recipe(RunSpec.from_mapping(values))


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all gradients by name."""
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
