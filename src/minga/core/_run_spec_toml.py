"""Run specs written as TOML, with or without comments on every setting."""

from __future__ import annotations

import json
import textwrap

from pydantic import BaseModel

from minga.core._run_spec_fields import allowed_values

_TITLE = """\
# A minga run spec: what all peers of a run agree on. Every setting below has its default value, so a file with only
# `name` is complete. Sizes of batches, steps and the like count for all peers together.
"""


def render(spec: BaseModel, *, comments: bool) -> str:
    """The settings of `spec` in the order of their declaration; None is left out, or shown commented out."""
    plain = [name for name in type(spec).model_fields if not isinstance(getattr(spec, name), BaseModel | dict)]
    lines = [_TITLE] if comments else []
    lines += _settings(spec, plain, comments=comments)
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            lines.append(f"\n[{name}]" + (f"  # {_first_sentence(value)}" if comments else ""))
            lines += _settings(value, list(type(value).model_fields), comments=comments)
        elif isinstance(value, dict):
            for key, entry in value.items():
                lines.append(f"\n[{name}.{_key(key)}]")
                lines += _settings(entry, list(type(entry).model_fields), comments=comments)
    return "\n".join(lines) + "\n"


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
    return (type(section).__doc__ or "").split("\n")[0].rstrip(".").lower()


def _key(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"no TOML for {type(value).__name__}")
