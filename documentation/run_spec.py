"""The reference page of the run spec: each setting with its default, what it may be and what it means."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from minga.core.spec.fields import allowed_values
from minga.core.spec.run_spec import RunSpec

HEAD: Final = """\
# Run spec

<!-- Made by `make docs` from `minga.core.spec`. -->

A run spec is the TOML file that describes a run. Only `name` is required. `minga new RECIPE` prints one with every
setting and its meaning. Sizes of batches, steps and the like count for all peers together.
"""
TAIL: Final = """
## `[recipe.NAME]` and `[strategy.NAME]`

Recipes and strategies have settings in tables of their own. `minga new RECIPE` prints those of a recipe and its data,
[Choose a strategy](../strategies.md) has those of strategies.
"""
SHORTER: Final = (
    (r"^a (?:whole )?number from (\S+) to", r"\1 to"),
    (r"^a number of at least (\S+) and at most", r"\1 to"),
    (r"^a number of at least (\S+) and below", r"\1 to below"),
    (r"^a number above (\S+) and", r"above \1,"),
    (r"^[01] to \d+(,\d{3}){2,}(, or|; |$)", r"\2"),
    (r"^(, or |; )", ""),
    (r"^one of (?=\")|^true or false$", ""),
    (r"^the name of a codec, with settings or without: .*", "a [codec](../compressors.md)"),
    (r"^the name of a strategy: .*", "a [strategy](../strategies.md)"),
)
"""What a setting may be is a part of error messages; the page says it shorter."""


def run_spec_page() -> str:
    """The page, as Markdown."""
    spec = RunSpec(name="my first run")
    sections = {name: value for name in RunSpec.model_fields if isinstance(value := getattr(spec, name), BaseModel)}
    parts = [HEAD, "\n## The run\n\n", _list(RunSpec, leave_out=(*sections, "begun", "wheel"))]
    for name, section in sections.items():
        sentence = " ".join((inspect.getdoc(section) or "").split("\n\n", maxsplit=1)[0].split())
        parts.append(f"\n## `[{name}]`\n\n{sentence}\n\n{_list(type(section))}")
    return "".join([*parts, TAIL])


def _list(section: type[BaseModel], leave_out: tuple[str, ...] = ()) -> str:
    return "".join(_line(name, field) for name, field in section.model_fields.items() if name not in leave_out)


def _line(name: str, field: FieldInfo) -> str:
    """A setting: its name and default, what it may be, and what it means."""
    allowed = allowed_values(field) or ""
    for pattern, shorter in SHORTER:
        allowed = re.sub(pattern, shorter, allowed)
    default = _default(field)
    title = f"`{name} = {default}`" if default else f"`{name}`"
    text = f"{title} ({allowed}): {field.description}" if allowed else f"{title}: {field.description}"
    return textwrap.fill(text, 120, initial_indent="* ", subsequent_indent="  ", break_long_words=False) + "\n"


def _default(field: FieldInfo) -> str:
    value: Any = None if field.is_required() else field.get_default(call_default_factory=True)
    return "" if value is None or value == "" else json.dumps(value, ensure_ascii=False)
