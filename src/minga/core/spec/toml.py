"""Run specs written as TOML, with or without comments on every setting."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from minga.core.spec.fields import allowed_values

_TITLE = """\
# A minga run spec: what all peers of a run agree on. A setting that is left out has its default, so a file with only
# `name` is complete. Sizes of batches, steps and the like count for all peers together.
"""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ACRONYM = re.compile(r"\w+[A-Z]")


def render(
    spec: BaseModel,
    *,
    comments: bool,
    plain: Mapping[str, Mapping[str, Any]] | None = None,
    leave_out: Collection[str] = (),
) -> str:
    """The settings of `spec` in the order of their declaration; None is left out, or shown commented out.

    `plain` are tables by name that are written as they are, in place of sections of these names. Settings to
    `leave_out` are not for people to write.
    """
    fields = [name for name in type(spec).model_fields if name not in (plain or {}) and name not in leave_out]
    values = {name: getattr(spec, name) for name in fields}
    lines = [_TITLE] if comments else []
    own = [name for name, value in values.items() if not isinstance(value, BaseModel | dict)]
    lines += _settings(spec, own, comments=comments)
    for name, value in values.items():
        if isinstance(value, BaseModel):
            lines += _section(name, value, comments=comments)
        elif isinstance(value, dict):
            for key, entry in value.items():
                if isinstance(entry, BaseModel):
                    lines += _section(table_name(name, key), entry, comments=comments)
    for name, table in (plain or {}).items():
        lines += _table(name, table)
    return "\n".join(lines) + "\n"


def table_name(table: str, name: str) -> str:
    """How the table `name` in `table` is written; a dot in a name would make two tables of it."""
    return f"{table}.{name if _BARE_KEY.fullmatch(name) else _key(name)}"


def render_section(name: str, section: BaseModel) -> str:
    """One section as a commented table `[name]`, with the tables inside it."""
    return "\n".join(_section(name, section, comments=True)) + "\n"


def render_commented(name: str, section: BaseModel) -> str:
    """The same with each line commented out, for a table that a run may have or not."""
    lines = _section(name, section, comments=True)
    return "\n".join(f"# {line}" if line.strip() else line for text in lines for line in text.split("\n")) + "\n"


def _table(name: str, table: Mapping[str, Any]) -> list[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) and value}
    lines = [f"\n[{name}]"]
    lines += [f"{key} = {_value(value)}" for key, value in table.items() if key not in inner and value is not None]
    for key, value in inner.items():
        lines += _table(f"{name}.{key}", value)
    return lines


def _section(name: str, section: BaseModel, *, comments: bool) -> list[str]:
    """A table, with the tables inside it after its own settings."""
    fields = type(section).model_fields
    inner = [each for each in fields if isinstance(getattr(section, each), BaseModel)]
    listed = [each for each in fields if _is_tables(getattr(section, each))]
    meaning = _first_sentence(section) if comments else ""
    lines = [f"\n[{name}]" + (f"  # {meaning}" if meaning else "")]
    lines += _settings(section, [each for each in fields if each not in (*inner, *listed)], comments=comments)
    for each in inner:
        lines += _section(f"{name}.{each}", getattr(section, each), comments=comments)
    for each in listed:
        for entry in getattr(section, each):
            lines += _section(f"[{name}.{each}]", entry, comments=comments)
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, BaseModel) for each in value)


def _settings(section: BaseModel, names: list[str], *, comments: bool) -> list[str]:
    lines = []
    for name in names:
        field, value = type(section).model_fields[name], getattr(section, name)
        if comments:
            note = f"{field.description}: {allowed_values(field)}"
            lines += textwrap.wrap(note, width=116, initial_indent="# ", subsequent_indent="#   ")
        if value is not None:
            lines.append(f"{name} = {_value(value)}")
        elif field.default is not None:
            lines.append(f'{name} = "off"')
        elif comments:
            lines.append(f"# {name} =")
    return lines


def _first_sentence(section: BaseModel) -> str:
    """As a part of a line: it begins with a small letter, unless with an acronym or a name such as PyTorch."""
    sentence = (type(section).__doc__ or "").split("\n")[0].rstrip(".")
    return sentence if _ACRONYM.match(sentence) else sentence[:1].lower() + sentence[1:]


def _key(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"no TOML for {type(value).__name__}")
