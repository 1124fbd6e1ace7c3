"""The methods that `benchmarks.strategies` compares: one line each, with what the formulas say about its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Method:
    """A way to train: tables of a run spec, and global batches a round (H inner steps, where peers take these).

    `up_bits` and `down_bits` are what the formulas give for an element on each way, encoded; None where they depend on
    the data. `senders` is the share of the peers that send. `second` is what tuning varies besides the learning rate:
    the table, the setting, and the values.
    """

    name: str
    spec: Tables = field(default_factory=dict)
    batches: int = 1
    up_bits: float | None = 16.0
    down_bits: float | None = 16.0
    second: tuple[str, str, tuple[float, ...]] | None = None


def _averaging(**settings: Any) -> Tables:
    return {"averaging": settings}


def _strategy(name: str, averaging: Mapping[str, Any] | None = None, **settings: Any) -> Tables:
    tables: dict[str, Any] = {"training": {"strategy": name}, "averaging": averaging or {"codec": "float16"}}
    return {**tables, "strategy": {name: settings}} if settings else tables


INT8_BITS: Final = 8.0 + 16.0 / 256
REFERENCE: Final = "float16"

METHODS: Final = {
    method.name: method
    for method in (
        Method(REFERENCE, _averaging(codec="float16")),
        Method("float32", _averaging(codec="float32"), up_bits=32.0, down_bits=32.0),
        Method("delayed", _strategy("delayed")),
        Method("int8", _averaging(codec="int8"), up_bits=INT8_BITS, down_bits=INT8_BITS),
        Method("adaptive", _averaging(codec="adaptive"), up_bits=None, down_bits=None),
    )
}
