"""Settings given beside a scenario's file: `training.target_batch_size=512`, `peers.home.count=20`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.core.toml_file import parse_value, split_setting

Change = tuple[str, str]
"""A key and the text of its value."""

MAX_RUNS: Final = 1000


def split_change(text: str, option: str) -> Change:
    """Key and value of `key=value`; `option` is what the message of a `ConfigurationError` calls it."""
    return split_setting(text, f"{option} ", "training.target_batch_size=512")


def changed(values: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """A copy of a scenario's values with some replaced.

    A key leads through tables by dots; a table of several, such as [[peers]], is told by its name or its number from 1.
    """
    result = copy.deepcopy(dict(values))
    for key, text in changes:
        *path, last = key.split(".")
        _table(result, path, key)[last] = parse_value(text)
    return result


def sweeps(texts: Sequence[str]) -> Iterator[list[Change]]:
    """All combinations of the values of `key=a,b,c`, as changes. Raises `ConfigurationError`, also for too many."""
    axes: list[list[Change]] = []
    for text in texts:
        key, values = split_change(text, "--sweep")
        axis = [(key, value.strip()) for value in values.split(",") if value.strip()]
        if not axis:
            raise ConfigurationError(f"--sweep {text[:60]!r}: no value is given; write KEY=A,B,C")
        if len(set(axis)) < len(axis) or any(key == other[0][0] for other in axes):
            raise ConfigurationError(f"--sweep {text[:60]!r}: write each key once, with different values: KEY=A,B,C")
        axes.append(axis)
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MAX_RUNS:
        raise ConfigurationError(f"--sweep: {count} runs; there may be at most {MAX_RUNS}")
    for combination in itertools.product(*axes):
        yield list(combination)


def _table(values: dict[str, Any], path: Sequence[str], key: str) -> dict[str, Any]:
    """The table to which a path leads; tables that are not there are made."""
    table: Any = values
    for name in path:
        if isinstance(table, list):
            found = [each for number, each in enumerate(table, 1) if name in (str(number), _name(each))]
            if len(found) != 1:
                names = [_name(each) or str(number) for number, each in enumerate(table, 1)]
                raise ConfigurationError(f"{key}: there is no {name!r} here; there are: {', '.join(names)}")
            table = found[0]
        elif isinstance(table, dict):
            table = table.setdefault(name, {})
        else:
            break
    if not isinstance(table, dict):
        raise ConfigurationError(f"{key}: {'.'.join(path)} is no table of settings")
    return table


def _name(each: Any) -> str:
    return str(each.get("name", "")) if isinstance(each, dict) else ""
