"""The small numbers of a training state as canonical JSON: learning rates, counters, the scheduler's place.

Theory of operation. Equal states must give equal bytes on every machine, whatever version of torch runs there. So of
settings dictionaries (parameter groups, schedulers) only *numbers* travel: they are what training changes. Switches,
names and functions (`fused`, `foreach`, lambdas, whatever a later torch adds) belong to the code that each peer runs
itself. A received state is merged into a structure that exists here: a number can replace a number and nothing else, so
that a hostile state can neither add attributes nor change types.

JSON has no infinity: it is written as the string "inf" or "-inf". NaN is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.spec.plugins import NAME_PATTERN

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

STRATEGY_NAME = "strategy"
"""The key under which a state names its strategy."""

TRAINS = "trains"
"""The key under which a state says what trains in its run, beside the model's tensors."""

MAX_SCALARS_BYTES = 24 << 20
"""Largest canonical JSON: 60 bytes for each of 100,000 parameters, 150 for each that is frozen, and room."""

_INFINITIES = {"inf": math.inf, "-inf": -math.inf}
_NOT_SETTINGS = frozenset({"params", "param_names"})


def canonical_json(value: Json) -> bytes:
    """The one ASCII encoding of `value`: sorted keys, no spaces, shortest exact floats.

    Raises `ValueError` for NaN, infinity or anything that JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not representable as JSON: {error}") from error


def parse_canonical_json(data: bytes) -> dict[str, Json]:
    """Decode what `canonical_json` made of a dictionary. Raises `ValueError` if `data` is anything else."""
    if len(data) > MAX_SCALARS_BYTES:
        raise ValueError(f"{len(data)} bytes of scalars exceed {MAX_SCALARS_BYTES}")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("scalars are nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("scalars are not a JSON object")
    if canonical_json(value) != data:
        raise ValueError("scalars are not in canonical form")
    return value


def strategy_of(scalars: Mapping[str, Json]) -> str | None:
    """The strategy that goes on from a state with these scalars; None for that with which the run began.

    Raises `ConfigurationError` if what they say is no name.
    """
    name = scalars.get(STRATEGY_NAME)
    if name is not None and not (isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)):
        raise ConfigurationError("the state's scalars are malformed: the strategy has no name")
    return name


def numbers_of(value: Any) -> Json:
    """The numbers in nested dictionaries and lists; whatever else stands in a list becomes None to keep its place.

    Booleans count as switches, not as numbers. Raises `NonFiniteError` for NaN.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype is not torch.bool:
        value = value.item()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return encode_number(value)
    if isinstance(value, Mapping):
        found = {str(key): numbers_of(each) for key, each in value.items()}
        return {key: each for key, each in found.items() if each is not None}
    if isinstance(value, list | tuple):
        return [numbers_of(each) for each in value]
    return None


def encode_number(value: float) -> Json:
    """A number as JSON; infinity as a string. Raises `NonFiniteError` for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise NonFiniteError("a setting of the optimizer or scheduler is NaN")
        return "inf" if value > 0 else "-inf"
    return int(value) if isinstance(value, int) else float(value)


def decode_number(value: Json) -> float | None:
    """The number that `encode_number` wrote, or None if `value` is no number."""
    if isinstance(value, str):
        return _INFINITIES.get(value)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def merge_numbers(local: Any, remote: Json) -> Any:
    """`local` with its numbers replaced by those of `remote`; where the two do not fit, `local` stays.

    Tensors are filled in place, everything else is returned as new objects.
    """
    if isinstance(local, torch.Tensor):
        if local.numel() == 1 and (number := decode_number(remote)) is not None:
            local.fill_(number)
        return local
    if isinstance(local, bool):
        return local
    if isinstance(local, int | float):
        number = decode_number(remote)
        return local if number is None else number
    if isinstance(local, dict) and isinstance(remote, dict):
        merged = local.copy()
        for key, each in local.items():
            merged[key] = merge_numbers(each, remote.get(str(key)))  # one by one: Counter.update would add
        return merged
    if type(local) in (list, tuple) and isinstance(remote, list) and len(local) == len(remote):
        return type(local)([merge_numbers(mine, other) for mine, other in zip(local, remote, strict=True)])
    return local


def group_numbers(group: Mapping[str, Any]) -> dict[str, Json]:
    """The numbers of one optimizer parameter group, all as floats so that `lr=1` and `lr=1.0` are the same."""
    return {
        key: _as_floats(found)
        for key, value in group.items()
        if key not in _NOT_SETTINGS and (found := numbers_of(value)) is not None
    }


def set_group_numbers(group: dict[str, Any], numbers: Json) -> None:
    """Put the numbers of `group_numbers` into a group; a key unknown here (set by a scheduler there) is ignored.

    Raises `ConfigurationError` if `numbers` is not a dictionary.
    """
    if not isinstance(numbers, dict):
        raise ConfigurationError("the state's parameter groups are not dictionaries")
    for key, value in numbers.items():
        if key not in group or key in _NOT_SETTINGS:
            continue
        before = group[key]
        after = merge_numbers(before, value)
        whole = isinstance(before, int) and isinstance(after, float) and after.is_integer()
        group[key] = int(after) if whole and not isinstance(before, bool) else after


def _as_floats(value: Json) -> Json:
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_floats(each) for key, each in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
