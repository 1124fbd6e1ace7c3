"""Run specs of version 2 and before, in which `[model]` and `[data]` held the settings of the recipe.

Such a spec keeps its canonical bytes, and so its run id, for good. In memory its settings stand where those of today's
recipes stand, as `[recipe.NAME]` with the table `data` inside, in the old names. A recipe that is older than version 3
translates them (`Recipe.from_version_2`). Every spec had all of these settings, whatever its recipe, and a file need
not spell out the usual ones; so `run_spec_version_2.json` keeps them, as they were then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.core.spec.problems import suggestion

LAST_OLD_VERSION: Final = 2
_DEFAULT_RECIPE: Final = "albert"
_USUAL_RELAY: Final = "none"
"""What a spec of those versions means that names no relay."""


def is_old(values: Mapping[str, Any]) -> bool:
    """Whether a spec is of version 2 or before: it says so, or has settings in the places of that version."""
    version = values.get("spec_version")
    if version is not None:
        return isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= LAST_OLD_VERSION
    model = values.get("model")
    return "data" in values or (isinstance(model, Mapping) and any(name in _usual()["model"] for name in model))


def to_present(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The tables of an old spec in today's places, complete. Raises `ConfigurationError` for settings it never had."""
    if "recipe" in values:
        raise ConfigurationError(
            f"{source}: recipe: a spec of version {LAST_OLD_VERSION} has its settings in [model] and [data]; "
            "with [recipe.NAME] write spec_version = 3 and leave those out"
        )
    model = dict(_table(values, "model", source))
    recipe = model.pop("recipe", _DEFAULT_RECIPE)
    if not isinstance(recipe, str):
        raise ConfigurationError(f"{source}: model.recipe: must be the name of a recipe")
    settings = _completed("model", model, source)
    settings["data"] = _completed("data", _table(values, "data", source), source)
    rest = {name: value for name, value in values.items() if name not in ("model", "data")}
    if "relay" not in _table(values, "network", source):
        rest["network"] = {"relay": _USUAL_RELAY, **_table(values, "network", source)}
    return {"spec_version": LAST_OLD_VERSION, **rest, "model": {"recipe": recipe}, "recipe": {recipe: settings}}


def to_past(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of an old spec in their places, as they are hashed, signed and written."""
    past = dict(values)
    recipe = past["model"]["recipe"]
    settings = dict(past.pop("recipe")[recipe])
    past["data"] = settings.pop("data")
    past["model"] = {"recipe": recipe, **settings}
    return past


def local_paths(settings: Mapping[str, Any]) -> bool:
    """Whether the settings name files on the machine of the peer that wrote them."""
    return bool(settings["data"]["files"])


def without_local_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are published."""
    return {**settings, "data": {**settings["data"], "files": []}}


def _table(values: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{source}: {name}: must be a table of settings")
    return table


def _completed(name: str, table: Mapping[str, Any], source: str) -> dict[str, Any]:
    usual = _usual()[name]
    if unknown := [key for key in table if key not in usual]:
        known = ["recipe", *usual] if name == "model" else list(usual)
        raise ConfigurationError(
            f"{source}: {name}.{str(unknown[0])[:60]}: unknown key{suggestion(str(unknown[0]), known)}"
        )
    return {key: _as_usual(table[key], value) if key in table else value for key, value in usual.items()}


def _as_usual(value: Any, usual: Any) -> Any:
    """A number as it is spelled in the canonical form: with a point where the setting has one."""
    if isinstance(usual, float) and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) + 0.0
        except OverflowError:
            return value
    return list(value) if isinstance(value, tuple) else value


@cache
def _usual() -> dict[str, dict[str, Any]]:
    usual: dict[str, dict[str, Any]] = json.loads(
        files("minga.core.spec").joinpath("run_spec_version_2.json").read_text("utf-8")
    )
    return usual
