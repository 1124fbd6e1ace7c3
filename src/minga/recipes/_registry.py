"""From the name of a recipe in a run spec to the recipe."""

from __future__ import annotations

from minga.core._errors import ConfigurationError
from minga.core._run_spec import RunSpec
from minga.recipes._interface import Recipe


def load_recipe(spec: RunSpec) -> Recipe:
    """The recipe that `spec.model.recipe` names. Raises `ConfigurationError` if there is none of that name."""
    if spec.model.recipe == "albert":
        # Its libraries take seconds to import; only those who need them should wait.
        from minga.recipes._albert import AlbertRecipe

        return AlbertRecipe(spec)
    raise ConfigurationError(f"model.recipe = {spec.model.recipe!r}: there is no such recipe")
