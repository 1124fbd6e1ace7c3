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

    `up_bits` and `down_bits` are what the formulas give for an element on each way, encoded, all fragments together;
    None where they depend on the data. `times` are the seconds a sample that they give for kappa 0.1, 1 and 10,
    relative to computing alone.
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


def _local(name: str, batches: int, *, is_int4: bool = False, **settings: Any) -> Method:
    """Local steps, an outer step every so many global batches. Tuning tries half of the outer rate, too."""
    averaging, bits = (INT4, INT4_BITS) if is_int4 else ({"codec": "float16"}, 16.0)
    times = tuple(1.0 if settings.get("overlap") else 1.0 + kappa * bits / 16 / batches for kappa in (0.1, 1.0, 10.0))
    half = _strategy("local", averaging, outer_learning_rate=settings["outer_learning_rate"] / 2)
    return Method(name, _strategy("local", averaging, **settings), batches, bits, bits, times, half)


def _with_muon(method: Method) -> Method:
    """The same with Muon for the inner steps, as MuLoCo has it."""
    spec = _laid_over(method.spec, {"optimizer": {"name": "muon", "momentum": 0.95}})
    return replace(method, name=f"{method.name}-muon", spec=spec)


HALF_RATE: Final = {"optimizer": {"learning_rate": 1e-3}}
"""Half of the tasks' rate: what trials found for gradients that come late."""
INT8_BITS, INT4_BITS = 8.0 + 16.0 / 256, 4.0 + 16.0 / 64
SPARSE: Final = {"codec": "topk(k=64, values=2bit)", "download_codec": "gtopk"}
INT4: Final = {"codec": "int4"}
REFERENCE: Final = "float16"

METHODS: Final = {
    method.name: method
    for method in (
        Method(REFERENCE, _averaging(codec="float16"), times=(1.1, 2.0, 11.0)),
        Method("float32", _averaging(codec="float32"), up_bits=32.0, down_bits=32.0, times=(1.2, 3.0, 21.0)),
        Method("delayed", _strategy("delayed") | HALF_RATE, times=(1.0, 1.0, 10.0)),
        Method(
            "delayed-int8",
            _strategy("delayed", {"codec": "int8"}) | HALF_RATE,
            up_bits=INT8_BITS,
            down_bits=INT8_BITS,
            times=(1.0, 1.0, 5.0),
        ),
        Method("int8", _averaging(codec="int8"), up_bits=INT8_BITS, down_bits=INT8_BITS, times=(1.05, 1.5, 6.0)),
        Method("int4", _averaging(codec="int4"), 1, INT4_BITS, INT4_BITS, (1.03, 1.27, 3.66)),
        Method("adaptive", _averaging(codec="adaptive"), up_bits=None, down_bits=None),
        Method(
            "topk",
            _averaging(codec="topk(k=41)", download_codec="gtopk") | HALF_RATE,
            up_bits=0.246,
            down_bits=1.375,
            variant=_averaging(codec="topk(k=82)"),
        ),
        Method(
            "topk-union",
            _averaging(codec="topk(k=41)", download_codec="union"),
            up_bits=0.246,
            down_bits=None,
            variant=_averaging(codec="topk(k=82)"),
        ),
        Method(
            "powersgd",
            _averaging(codec="float16", sketch="powersgd(rank=4, start={tenth})"),
            up_bits=None,
            down_bits=None,
        ),
        _local("local-20", 20, outer_learning_rate=0.6, outer_momentum=0.5),
        _local("local-20-m9", 20, outer_learning_rate=0.6, outer_momentum=0.9),
        _local("local-20-batch", 20, outer_learning_rate=0.6, outer_momentum=0.5, weight="batch"),
        _local("local-20-overlap", 20, outer_learning_rate=0.6, outer_momentum=0.5, overlap=True),
        _local("local-20-eager", 20, outer_learning_rate=0.6, outer_momentum=0.5, overlap=True, merge="eager"),
        _local("local-30-int4", 30, is_int4=True, outer_learning_rate=0.7, outer_momentum=0.5),
        _local("local-30-int4-overlap", 30, is_int4=True, outer_learning_rate=0.7, outer_momentum=0.5, overlap=True),
        _with_muon(_local("local-30-int4", 30, is_int4=True, outer_learning_rate=0.7, outer_momentum=0.5)),
        _local("local-100", 100, outer_learning_rate=0.8),
        _local("local-100-int4", 100, is_int4=True, outer_learning_rate=0.8),
        _local("streaming-100-int4", 100, is_int4=True, outer_learning_rate=0.8, fragments=2, overlap=True),
        _local("streaming-100-mix", 100, is_int4=True, outer_learning_rate=0.8, fragments=2, overlap=True, merge="mix"),
        Method(
            "sparseloco-30",
            _strategy("local", {**SPARSE, "residual_decay": 0.95}, outer_learning_rate=1.0, outer_momentum=0.0),
            30,
            None,
            None,
            variant=_strategy("local", {**SPARSE, "residual_decay": 0.95}, outer_learning_rate=4.0),
        ),
        Method(
            "demo",
            {
                "training": {"strategy": "demo"},
                "optimizer": {"name": "sgd", "momentum": 0.0, "learning_rate": 1e-3, "max_grad_norm": "off"},
                "averaging": {
                    "codec": "topk(k=32)",
                    "download_codec": "union",
                    "sketch": "dct64",
                    "residual_decay": 0.999,
                },
            },
            1,
            None,
            None,
        ),
        Method("leader", _strategy("leader"), 64, times=(1.0, 1.02, 1.16), variant=_strategy("leader", pull=0.2)),
        Method("elastic", _strategy("elastic"), 20, variant=_strategy("elastic", beta=0.9)),
    )
}

QUICK: Final = (REFERENCE, "int8", "topk", "local-20")
"""What is compared in a few minutes."""
