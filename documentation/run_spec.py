"""The reference page of the run spec: each setting with its default, what it may be and what it means."""

from __future__ import annotations

import inspect
import json
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from minga.averaging.strategy_choice import STRATEGIES
from minga.core.spec.fields import allowed_values
from minga.core.spec.run_spec import RunSpec
from minga.recipes.registry import RECIPES

HEAD: Final = """\
# Run spec

<!-- Made by `make docs` from `minga.core.spec` and the settings of recipes and strategies. -->

A run spec is the TOML file that describes a run. Only `name` is required. `minga new RECIPE` prints one with every
setting and its meaning. Sizes of batches, steps and the like count for all peers together.
"""
TABLE: Final = "\n| setting | default | may be | meaning |\n| --- | --- | --- | --- |\n"


def run_spec_page() -> str:
    """The page, as Markdown."""
    spec = RunSpec(name="my first run")
    sections = {name: value for name in RunSpec.model_fields if isinstance(value := getattr(spec, name), BaseModel)}
    parts = [HEAD, "\n## The run\n", _table(RunSpec, leave_out=(*sections, "begun", "wheel"))]
    parts += [_section(name, type(section)) for name, section in sections.items()]
    parts.append("\n## Recipes\n\nThe settings of a recipe stand in a table of its own, `[recipe.NAME]`.\n")
    recipes = filter(_comes_with_minga, RECIPES.names())
    parts += [_section(f"recipe.{name}", RECIPES.get(name).Settings, level=3) for name in recipes]
    parts.append(
        "\n## Strategies\n\nThe settings of a strategy stand in a table of its own, `[strategy.NAME]`.\n"
        "Each but `synchronous` also takes [a warm start](../strategies.md#another-strategy-later):\n"
        "`synchronous_for`, the samples of a first phase that is synchronous, and `synchronous_batch`, those of each\n"
        "step of it.\n"
    )
    kinds = {name: STRATEGIES.get(name) for name in STRATEGIES.names() if STRATEGIES.origin(name) is None}
    parts += [_section(f"strategy.{n}", k.Settings, level=3) for n, k in kinds.items() if k.Settings.model_fields]
    return "".join(parts)


def _comes_with_minga(recipe: str) -> bool:
    return RECIPES.origin(recipe) is None


def _section(name: str, section: type[BaseModel], level: int = 2) -> str:
    sentence = " ".join((inspect.getdoc(section) or "").split("\n\n", maxsplit=1)[0].split())
    return f"\n{'#' * level} `[{name}]`\n\n{sentence}\n" + _table(section)


def _table(section: type[BaseModel], leave_out: tuple[str, ...] = ()) -> str:
    rows = [_row(name, field) for name, field in section.model_fields.items() if name not in leave_out]
    return TABLE + "".join(rows)


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _default(field), allowed_values(field) or "", field.description or "")
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return ""
    if isinstance(value, BaseModel):
        return "a table"
    return f"`{json.dumps(value, ensure_ascii=False)}`"
