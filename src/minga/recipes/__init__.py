"""Models, data and losses that runs can name.

    class Digits(Recipe[DigitsSettings]): ...       a package's module

    [project.entry-points."minga.recipes"]          its pyproject.toml
    digits = "my_recipes:Digits"

What is listed here is public: the interface, how settings are declared, and what recipes may use. It imports neither
torch nor the libraries of any recipe; those come with the recipe that a run names. `minga.testing.check_recipe` says
whether a recipe keeps what the interface promises.
"""

from __future__ import annotations

from importlib import import_module

from minga.core._run_spec_fields import choice, described, real, whole
from minga.recipes._interface import (
    Batch,
    Files,
    Metric,
    Recipe,
    RecipeContext,
    RecipeFacts,
    Settings,
    StreamPosition,
)
from minga.recipes._registry import RECIPES, load_recipe, published

__all__ = [
    "RECIPES",
    "Batch",
    "Files",
    "Metric",
    "Recipe",
    "RecipeContext",
    "RecipeFacts",
    "Settings",
    "StreamPosition",
    "choice",
    "described",
    "load_recipe",
    "new_model",
    "published",
    "real",
    "shuffled",
    "whole",
]

_LATE = {"new_model": "minga.recipes._initial", "shuffled": "minga.recipes._order"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
