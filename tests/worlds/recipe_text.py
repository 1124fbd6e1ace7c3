"""What the tests of the ALBERT recipe share: a short real text and a small run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe
from minga.recipes.albert.recipe import AlbertRecipe

GENESIS = Path(__file__).parent.parent / "data" / "web_genesis.txt"
ALICE, BOB = "a1" * 32, "b0" * 32


def long_text() -> str:
    """Genesis with as many chapters again."""
    return "\n".join(path.read_text("utf-8") for path in (GENESIS, GENESIS.with_name("web_genesis_22_to_42.txt")))


def small_spec(**sections: Mapping[str, Any]) -> RunSpec:
    """A run on Genesis with a tiny model; each section given is laid over the defaults.

    `albert` are settings of the recipe, `data` those of its text.
    """
    values: dict[str, dict[str, Any]] = {
        "albert": {
            "max_length": 48,
            "overrides": {"hidden_size": 32, "intermediate_size": 64, "embedding_size": 16},
            "vocabulary_size": 1000,
        },
        "data": {"source": "files", "files": [str(GENESIS)], "heldout_fraction": 0.1},
        "optimizer": {"name": "adamw", "learning_rate": 0.005, "warmup_steps": 2, "total_steps": 1000},
        "training": {"target_batch_size": 64, "seed": 3},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    recipe = {"albert": {**values.pop("albert"), "data": values.pop("data")}}
    return RunSpec.from_mapping({"name": "genesis", "recipe": recipe, **values})


def small_recipe(**sections: Mapping[str, Any]) -> AlbertRecipe:
    """The recipe of `small_spec(**sections)`."""
    recipe = load_recipe(small_spec(**sections))
    assert isinstance(recipe, AlbertRecipe)
    return recipe


@cache
def prepared_genesis() -> tuple[tuple[str, bytes], ...]:
    """What the organiser of `small_spec()` makes, once for all tests."""
    return tuple(small_recipe().prepare().items())


def write_files(folder: Path, files: Mapping[str, bytes] | None = None) -> dict[str, Path]:
    """The files of a run (by default those of `small_spec()`) in a folder, as a recipe gets them."""
    contents = dict(prepared_genesis()) if files is None else files
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}
