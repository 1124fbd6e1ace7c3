"""The settings of recipes and strategies as the run spec keeps them: bounded tables, which only they understand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from minga.core.spec.problems import probably_meant

MAX_DEPTH: Final = 6
MAX_TABLE_BYTES: Final = 64 << 10
_KEY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_MAX_WHOLE: Final = 2**63 - 1


def read_recipe_tables(tables: Mapping[str, Any], recipe: str) -> dict[str, dict[str, Any]]:
    """The tables with each value in its one spelling; raises `ValueError` unless `recipe` has the only one, if any."""
    for name in tables:
        if name != recipe:
            raise ValueError(f'there are settings of {str(name)[:60]!r}, but model.recipe = "{recipe}"')
    return {name: _read_table(table, f"recipe.{name}") for name, table in tables.items()}


def read_strategy_tables(tables: Mapping[str, Any], strategies: Collection[str]) -> dict[str, dict[str, Any]]:
    """The tables with each value in its one spelling; raises `ValueError` for one of another than these strategies."""
    for name in tables:
        if name not in strategies:
            used = " and ".join(f'"{each}"' for each in strategies)
            raise ValueError(
                f"there are settings of {str(name)[:60]!r}, but the run's strategy is {used}"
                f"{probably_meant(name, strategies)}"
            )
    return {name: _read_table(table, f"strategy.{name}") for name, table in tables.items()}


def _read_table(table: Any, where: str) -> dict[str, Any]:
    """Values are printable texts, finite numbers, whole numbers of 64 bits, true or false, lists and tables with keys
    of a-z, 0-9 and _, of bounded depth and size.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table of settings")
    found: dict[str, Any] = _read(table, where, MAX_DEPTH)
    size = len(json.dumps(found, allow_nan=False))
    if size > MAX_TABLE_BYTES:
        raise ValueError(f"{where} takes {size} bytes; the limit is {MAX_TABLE_BYTES}")
    return found


def _read(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise ValueError(f"{where[:100]} is nested more than {MAX_DEPTH} deep")
        if not isinstance(value, Mapping):
            return [_read(each, where, depth - 1) for each in value]
        for key in value:
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise ValueError(f"{where[:100]}: {str(key)[:60]!r} is no key (a-z, 0-9, _, at most 64 of them)")
        return {key: _read(each, f"{where}.{key}", depth - 1) for key, each in value.items()}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is no finite number")
        return value + 0.0  # -0.0 equals 0.0 but prints differently, and the printed form is hashed
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _MAX_WHOLE:
            raise ValueError(f"{where} is not within 64 bits")
    elif isinstance(value, str):
        if not value.replace("\n", "").replace("\t", "").isprintable():
            raise ValueError(f"{where} is not printable")
    elif not isinstance(value, bool):
        raise ValueError(f"{where} is neither text, number, true or false, list nor table")
    return value
