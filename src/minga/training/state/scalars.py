"""The small numbers of a training state as canonical JSON: learning rates, counters, the scheduler's place.

Theory of operation. Equal states must give equal bytes on every machine, whatever version of torch runs there. So of
settings dictionaries (parameter groups, schedulers) only *numbers* travel: they are what training changes. Switches,
names and functions (`fused`, `foreach`, lambdas, whatever a later torch adds) belong to the code that each peer runs
itself. Switches of schedulers, such as `finished`, travel too, but for torch's own. A received state is merged into a
structure that exists here: a number can replace a number, a switch a switch, and nothing else, so that a hostile state
can neither add attributes nor change types. Only to parameter groups it can add numbers, as some optimizers do there at
their first step.

What counts as a number is said once, by `number_of`: those of numpy do, and tensors of one element.

JSON has no infinity: it is written as the string "inf" or "-inf". NaN is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

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
_EXACT = 2**53


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


def number_of(value: Any) -> int | float | None:
    """The number that `value` is, as Python has it: a number of Python or numpy, or a tensor of one element. None for
    whatever else, and for booleans, which are switches.
    """
    if getattr(value, "ndim", None) == 0 or (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def plain(value: Any) -> Any:
    """`value` with numbers of Python in the place of those of numpy, which round otherwise, in lists and so on too.

    Who takes a state over has these, so the others are to go on with them as well.
    """
    if isinstance(value, torch.Tensor) or type(value) in (int, float):
        return value
    if (number := number_of(value)) is not None:
        return number
    if type(value) is dict:
        return {key: plain(each) for key, each in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def numbers_of(value: Any, *, switches: bool = False) -> Json:
    """The numbers in nested dictionaries, lists and schedulers, of schedulers with their switches; whatever else stands
    in a list becomes None to keep its place.

    Raises `NonFiniteError` for NaN.
    """
    if (number := number_of(value)) is not None:
        return encode_number(number)
    if isinstance(value, bool):
        return value if switches else None
    if isinstance(value, LRScheduler):
        return numbers_of(value.state_dict(), switches=True)
    if isinstance(value, Mapping):
        kept = {str(key): each for key, each in value.items() if not (isinstance(each, bool) and _is_torchs(str(key)))}
        found = {key: numbers_of(each, switches=switches) for key, each in kept.items()}
        return {key: each for key, each in found.items() if each is not None}
    if isinstance(value, list | tuple):
        return [numbers_of(each, switches=switches) for each in value]
    return None


def _is_torchs(switch: str) -> bool:
    """Whether a switch of a scheduler is, by its name, one of those that differ between versions of torch."""
    return switch.startswith("_") or switch == "verbose"


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


def merge_numbers(local: Any, remote: Json, *, inside: bool = False) -> Any:
    """`local` with what `numbers_of` found replaced by that of `remote`; where the two do not fit, `local` stays.

    Schedulers are filled in place, and so are tensors that are not `inside` one: there one tensor may stand in several
    places. Everything else is returned as new objects.
    """
    if number_of(local) is not None:
        number = decode_number(remote)
        if isinstance(local, torch.Tensor) and number is not None:
            return (local.clone() if inside else local).fill_(number)
        return local if number is None else number
    if isinstance(local, bool):
        return remote if inside and isinstance(remote, bool) else local
    if isinstance(local, LRScheduler) and isinstance(remote, dict):
        local.load_state_dict(merge_numbers(local.state_dict(), remote, inside=True))
    if isinstance(local, dict) and isinstance(remote, dict):
        merged = local.copy()
        for key, each in local.items():  # one by one: Counter.update would add
            merged[key] = merge_numbers(each, remote.get(str(key)), inside=inside)
        return merged
    if type(local) in (list, tuple) and isinstance(remote, list) and len(local) == len(remote):
        return type(local)(
            [merge_numbers(mine, other, inside=inside) for mine, other in zip(local, remote, strict=True)]
        )
    return local


def group_numbers(group: Mapping[str, Any]) -> dict[str, Json]:
    """The numbers of one optimizer parameter group, all as floats so that `lr=1` and `lr=1.0` are the same."""
    return {
        key: _as_floats(found)
        for key, value in group.items()
        if key not in _NOT_SETTINGS and (found := numbers_of(value)) is not None
    }


def set_group_numbers(group: dict[str, Any], numbers: Json, begun: Collection[str]) -> None:
    """Put the numbers of `group_numbers` into a group. Those that it lacks are added, but for such as were among the
    settings with which it has `begun`.

    Raises `ConfigurationError` if `numbers` is not a dictionary.
    """
    if not isinstance(numbers, dict):
        raise ConfigurationError("the state's parameter groups are not dictionaries")
    for key, value in numbers.items():
        if key in _NOT_SETTINGS:
            continue
        if key in group:
            before = group[key]
            after = merge_numbers(before, value)
            group[key] = _as_whole(after) if isinstance(number_of(before), int) else after
        elif key not in begun and key.isidentifier() and (number := decode_number(value)) is not None:
            group[key] = _as_whole(number)  # a counter as a rule


def _as_whole(number: Any) -> Any:
    """A float as an integer, if it is exactly that."""
    is_whole = isinstance(number, float) and number.is_integer() and abs(number) < _EXACT
    return int(number) if is_whole else number


def _as_floats(value: Json) -> Json:
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_floats(each) for key, each in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
