"""The reference page of the run spec: each setting with its default, what it may be and what it means; those of
strategies stand on their page.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from textwrap import fill
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from minga.core.spec.fields import allowed_values
from minga.core.spec.run_spec import RunSpec
from minga.recipes.registry import RECIPES

HEAD: Final = """\
# Run spec

<!-- Made by `make docs` from `minga.core.spec` and the settings of recipes. -->

A run spec is the TOML file that describes a run. Only `name` is required. `minga new RECIPE` prints one with every
setting and its meaning, those of the recipe's data included. Sizes of batches, steps and the like count for all peers
together.
"""
TABLE: Final = "\n| setting | default | may be | meaning |\n| --- | --- | --- | --- |\n"
TAIL: Final = """
## Strategies

[Choose a strategy](../strategies.md) has the settings of each, which stand in a table `[strategy.NAME]`.
"""
SHORTER: Final = (
    (r"^a (?:whole )?number from (\S+) to", r"\1 to"),
    (r"^a number of at least (\S+) and at most", r"\1 to"),
    (r"^a number of at least (\S+) and below", r"\1 to below"),
    (r"^a number above (\S+) and", r"above \1,"),
    (r"^one of (?=\")|^true or false$", ""),
    (r"^the name of a codec, with settings or without: .*", "a [codec](../compressors.md)"),
    (r"^the name of a strategy: .*", "a [strategy](../strategies.md)"),
)
"""What a setting may be is a part of error messages; tables say it shorter."""
FEW: Final = 3
"""Settings that a recipe has in common with an earlier one, up to which they are told again."""


def run_spec_page() -> str:
    """The page, as Markdown."""
    spec = RunSpec(name="my first run")
    sections = {name: value for name in RunSpec.model_fields if isinstance(value := getattr(spec, name), BaseModel)}
    parts = [HEAD, "\n## The run\n", _table(_rows(RunSpec), leave_out=(*sections, "begun", "wheel"))]
    parts += [_section(name, type(section)) for name, section in sections.items()]
    parts.append("\n## Recipes\n\nThe settings of a recipe stand in a table of its own, `[recipe.NAME]`.\n")
    earlier: dict[str, type[BaseModel]] = {}
    for name in filter(_comes_with_minga, RECIPES.names()):
        section = RECIPES.get(name).Settings
        parts.append(_section(f"recipe.{name}", section, level=3, earlier=earlier))
        earlier[f"recipe.{name}"] = section
    parts.append(TAIL)
    return "".join(parts)


def _comes_with_minga(recipe: str) -> bool:
    return RECIPES.origin(recipe) is None


def _section(
    name: str, section: type[BaseModel], level: int = 2, earlier: Mapping[str, type[BaseModel]] | None = None
) -> str:
    """A table with its title; settings that are those of a section told `earlier` are only named."""
    sentence = " ".join((inspect.getdoc(section) or "").split("\n\n", maxsplit=1)[0].split())
    rows, told, also = _rows(section), ("", frozenset[str]()), ""
    for other, kind in (earlier or {}).items():
        common = frozenset(key for key, row in _rows(kind).items() if rows.get(key) == row)
        told = max(told, (other, common), key=lambda each: len(each[1]))
    if len(told[1]) > FEW:
        rows = {key: row for key, row in rows.items() if key not in told[1]}
        names = ", ".join(f"`{key}`" for key in section.model_fields if key in told[1])
        also = "\n" + fill(f"As in `[{told[0]}]`: {names}.", 120) + "\n"
    return f"\n{'#' * level} `[{name}]`\n\n{sentence}\n" + _table(rows) + also


def _table(rows: Mapping[str, str], leave_out: tuple[str, ...] = ()) -> str:
    return TABLE + "".join(row for name, row in rows.items() if name not in leave_out)


def _rows(section: type[BaseModel]) -> dict[str, str]:
    return {name: _row(name, field) for name, field in section.model_fields.items()}


def _row(name: str, field: FieldInfo) -> str:
    allowed = allowed_values(field) or ""
    for pattern, shorter in SHORTER:
        allowed = re.sub(pattern, shorter, allowed)
    cells = (f"`{name}`", _default(field), allowed, field.description or "")
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
