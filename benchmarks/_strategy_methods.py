"""The methods that `benchmarks.strategies` compares: one line each, with what the formulas say about its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

Tables = Mapping[str, Any]
TUNED_FACTORS: Final = (0.5, 1.0, 2.0)


@dataclass(frozen=True, eq=False)
class Method:
    """A way to train: tables of a run spec, and global batches a round (H inner steps, where peers take these).

    `up_bits` and `down_bits` are what the formulas give for an element on each way, encoded; None where they depend on
    the data. `times` are the seconds a sample that they give for kappa 0.1, 1 and 10, relative to computing alone.
    `variant` has what tuning tries instead of some settings.
    """

    name: str
    spec: Tables = field(default_factory=dict)
    batches: int = 1
    up_bits: float | None = 16.0
    down_bits: float | None = 16.0
    times: tuple[float, ...] = ()
    variant: Tables = field(default_factory=dict)

    @property
    def codec(self) -> str:
        """How contributions travel."""
        return str(self.spec.get("averaging", {}).get("codec", "adaptive"))

    @property
    def download_codec(self) -> str | None:
        """How means travel; None is as contributions do."""
        found: str | None = self.spec.get("averaging", {}).get("download_codec")
        return found

    def trials(self, learning_rate: float) -> list[Method]:
        """What is tried to tune it, at most six: three learning rates, with its settings and with their variant."""
        tried = [self.spec, *([_laid_over(self.spec, self.variant)] if self.variant else [])]
        return [
            replace(self, spec=_laid_over(spec, {"optimizer": {"learning_rate": factor * learning_rate}}))
            for factor in TUNED_FACTORS
            for spec in tried
        ]


def _laid_over(below: Tables, above: Tables) -> dict[str, Any]:
    """Both, table by table; what `above` says counts."""
    joined: dict[str, Any] = dict(below)
    for name, value in above.items():
        mine = joined.get(name)
        joined[name] = _laid_over(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return joined


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
        Method(REFERENCE, _averaging(codec="float16"), times=(1.1, 2.0, 11.0)),
        Method("float32", _averaging(codec="float32"), up_bits=32.0, down_bits=32.0, times=(1.2, 3.0, 21.0)),
        Method("delayed", _strategy("delayed"), times=(1.0, 1.0, 10.0)),
        Method("int8", _averaging(codec="int8"), up_bits=INT8_BITS, down_bits=INT8_BITS, times=(1.05, 1.5, 6.0)),
        Method("adaptive", _averaging(codec="adaptive"), up_bits=None, down_bits=None),
        Method("powersgd", _averaging(sketch="powersgd(rank=4, start={tenth})"), up_bits=None, down_bits=None),
        Method("leader", _strategy("leader"), batches=64, variant=_strategy("leader", pull=0.2)),
        Method("elastic", _strategy("elastic"), batches=20, variant=_strategy("elastic", beta=0.9)),
    )
}

QUICK: Final = (REFERENCE, "delayed", "int8", "adaptive")
"""What is compared in a few minutes."""
