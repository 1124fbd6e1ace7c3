"""What is wrong with a run spec, one line for each problem: file, key, value, what is allowed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from minga.core.spec.fields import allowed_values

MAX_LINES = 50
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_QUOTED = re.compile(r'"([^"]+)"')


def explain(
    error: ValidationError, model: type[BaseModel], source: str, *, within: str = "", shows_values: bool = True
) -> str:
    """All problems of a validation error of `model`; `source` is the file or whatever else the values came from.

    `within` is the table that the values stood in, such as `recipe.digits`. Without `shows_values` no value is
    repeated, for files that hold secrets.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        key, field_text = _locate(model, problem["loc"])
        key = ".".join(part for part in (within, key) if part)
        # A union reports each of its branches; the first line says it all.
        lines.setdefault(key, _line(source, key, field_text, dict(problem), shows_values))
    shown = list(lines.values())[:MAX_LINES]
    if len(lines) > MAX_LINES:
        shown.append(f"{source}: and {len(lines) - MAX_LINES} more problems")
    return "\n".join(shown)


def _line(source: str, key: str, allowed: str | None, problem: dict[str, Any], shows_value: bool) -> str:
    kind, value = problem["type"], problem["input"]
    where = f"{source}: {key}" if key else source
    given = f"{where} = {_short(value)}" if shows_value else where
    if kind == "extra_forbidden":
        return f"{where}: unknown key{allowed or ''}"
    if kind == "missing":
        return f"{where}: missing; it must be {allowed or 'given'}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{given}: must be a table of settings"
    if kind == "value_error":
        detail = str(problem["msg"]).removeprefix("Value error, ")
        return f"{where}: {detail}" if isinstance(value, dict) else f"{given}: {detail}"
    if not allowed:
        return f"{given}: {problem['msg']}"
    return f"{given}: must be {allowed}{probably_meant(value, _QUOTED.findall(allowed))}"


def _locate(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, str | None]:
    """The dotted key of a problem, and what is allowed there (for an unknown key, what was probably meant)."""
    current: type[BaseModel] | None = model
    table: type[BaseModel] | None = None
    key = ""
    allowed = None
    for part in location:
        if table is not None:
            key = f"[[{key}]] number {part + 1}: " if isinstance(part, int) else f"{key}.{_short_name(part)}"
            current, table = table, None
            continue
        if current is None:
            # Inside a value, where list indices and branches of unions would only confuse.
            break
        if part == "[key]":  # the name of a table is wrong
            return key, None
        key += ("" if not key or key.endswith(": ") else ".") + _short_name(part)
        field = current.model_fields.get(str(part))
        if field is None:
            return key, suggestion(str(part), list(current.model_fields))
        allowed = allowed_values(field)
        current, table = _model_in(field.annotation), _model_of_many(field.annotation)
    return key.removesuffix(": "), allowed


def _model_of_many(annotation: object) -> type[BaseModel] | None:
    """The model of which a field holds several, by name or in a row."""
    return next((model for model in map(_model_in, get_args(annotation)) if model is not None), None)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that a field holds."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def suggestion(name: str, known: list[str]) -> str:
    """What was probably meant by an unknown name, or all that there is; the end of a message."""
    return probably_meant(name, known) or f"; there are: {', '.join(known)}"


def probably_meant(name: object, known: Iterable[str]) -> str:
    """What was probably meant by an unknown name, as the end of a message; empty if nothing resembles it."""
    close = difflib.get_close_matches(name[:100], list(known), n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]}?" if close else ""


def _short_name(part: str | int) -> str:
    text = str(part)
    return text if _BARE_KEY.fullmatch(text) else json.dumps(text[:60])


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # whole numbers beyond the interpreter's limit of digits
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."
