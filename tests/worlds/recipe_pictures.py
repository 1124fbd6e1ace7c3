"""What the tests of the text-to-image recipe share: a small run on few shapes, prepared once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe
from minga.recipes.text_to_image.decoder import DecoderShape
from minga.recipes.text_to_image.recipe import TextToImageRecipe

SMALL: dict[str, Any] = {
    "overrides": {"width": 32, "layers": 6, "heads": 2, "text_length": 12, "vocabulary": 512},
    "tokenizer_steps": 4,
    "data": {"compositions": 120, "heldout_fraction": 0.1},
}


def small_shape(**changes: Any) -> DecoderShape:
    """A decoder that computes in milliseconds: 6 layers, a picture of 4 by 4."""
    usual = {"width": 32, "layers": 6, "heads": 2, "text_length": 5, "vocabulary": 20, "codes": 16, "grid": 4}
    return DecoderShape(**{**usual, **changes})


def picture_spec(**settings: Any) -> RunSpec:
    """A run of the recipe with the settings `SMALL`, and others besides or instead."""
    table = {"text-to-image": {**SMALL, **settings}}
    values = {"name": "pictures", "model": {"recipe": "text-to-image"}, "recipe": table, "training": {"seed": 3}}
    return RunSpec.from_mapping(values)


def picture_recipe(**settings: Any) -> TextToImageRecipe:
    """The recipe of `picture_spec`."""
    recipe = load_recipe(picture_spec(**settings))
    assert isinstance(recipe, TextToImageRecipe)
    return recipe


@cache
def prepared_pictures() -> Mapping[str, bytes]:
    """What the organiser of `picture_spec()` makes, once for all tests."""
    return picture_recipe().prepare()


def write_pictures(folder: Path, contents: Mapping[str, bytes] | None = None) -> dict[str, Path]:
    """The files of a run, by default those of `picture_spec()`, in a folder."""
    for name, body in (contents or prepared_pictures()).items():
        (folder / name).write_bytes(body)
    return {name: folder / name for name in contents or prepared_pictures()}
