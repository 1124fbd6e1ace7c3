"""The methods that `benchmarks.strategies` compares: one line each, and what the formulas say about their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, run_spec
from minga.averaging.strategy_choice import StrategyChoice, StrategyFacts, facts_of
from minga.planner.ways import TrainingWay

Tables = Mapping[str, Any]
TUNED_FACTORS: Final = (0.5, 1.0, 2.0)
BITS: Final = {
    ("float32", None): (32.0, 32.0),
    ("float16", None): (16.0, 16.0),
    ("int8", None): (8.0 + 16.0 / 256, 8.0 + 16.0 / 256),
    ("int4", None): (4.0 + 16.0 / 64, 4.0 + 16.0 / 64),
    ("topk(k=41)", "gtopk"): (0.246, 1.375),
}
"""What formulas give for an element of a contribution and of a mean, by their codecs; else it depends on the data."""


@dataclass(frozen=True, eq=False)
class Method:
    """A way to train: tables of a run spec, and global batches a round (H inner steps, where peers take these).

    `variant` has what tuning tries instead of some settings. With `is_plain` it is a loop of plain torch.
    """

    name: str
    spec: Tables = field(default_factory=dict)
    batches: int = 1
    variant: Tables = field(default_factory=dict)
    is_plain: bool = False

    @cached_property
    def facts(self) -> StrategyFacts:
        """Of its strategy, which no task changes."""
        return facts_of(run_spec(TASKS["albert"], 0, 1, GLOBAL_BATCH * self.batches, self.spec))

    @property
    def is_overlapped(self) -> bool:
        """Whether its rounds run beside computing."""
        return self.facts.max_in_flight > 0

    @property
    def bits(self) -> tuple[float, float] | None:
        """Encoded bits an element up and down by the formulas, all fragments together."""
        known = self.choice
        found = BITS.get((known["codec"], known.get("download_codec")))
        return None if "sketch" in self.spec["averaging"] else found

    @property
    def choice(self) -> dict[str, Any]:
        """What plans know it by."""
        averaging, strategy = self.spec["averaging"], self.spec.get("training", {}).get("strategy", "synchronous")
        choice = StrategyChoice(strategy, self.spec.get("strategy", {}).get(strategy, {}))
        return known_as(TrainingWay(choice, averaging["codec"], averaging.get("download_codec"), self.batches))

    def trials(self, learning_rate: float) -> list[Method]:
        """What is tried to tune it, at most six: three learning rates, with its settings and with their variant."""
        tried = [self.spec, *([_laid_over(self.spec, self.variant)] if self.variant else [])]
        return [
            replace(self, spec=_laid_over(spec, {"optimizer": {"learning_rate": factor * learning_rate}}))
            for factor in TUNED_FACTORS
            for spec in tried
        ]


def known_as(way: TrainingWay) -> dict[str, Any]:
    """What plans know a way by; what is as usual is left out."""
    found: dict[str, Any] = {"strategy": way.strategy.name, "codec": way.codec}
    found |= {"download_codec": way.download_codec} if way.download_codec else {}
    found |= {"batches": way.batches} if way.batches > 1 else {}
    return found | {name: each for name, each in way.strategy.table.items() if name in ("overlap", "fragments")}


def _laid_over(below: Tables, above: Tables) -> dict[str, Any]:
    """Both, table by table; what `above` says counts."""
    joined: dict[str, Any] = dict(below)
    for name, value in above.items():
        mine = joined.get(name)
        joined[name] = _laid_over(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return joined


def _averaging(codec: str, **settings: Any) -> Tables:
    return {"averaging": {"codec": codec, **settings}}


def _strategy(name: str, codec: str = "float16", **settings: Any) -> Tables:
    tables = {"training": {"strategy": name}, **_averaging(codec)}
    return {**tables, "strategy": {name: settings}} if settings else tables


def _local(name: str, batches: int, rate: float, momentum: float = 0.9, codec: str = "float16", **more: Any) -> Method:
    """Local steps, an outer step every so many global batches. Tuning tries half of the outer rate, too."""
    spec = _strategy("local", codec, outer_learning_rate=rate, outer_momentum=momentum, **more)
    return Method(name, spec, batches, {"strategy": {"local": {"outer_learning_rate": rate / 2}}})


def _with_muon(method: Method) -> Method:
    """The same with Muon for the inner steps, as MuLoCo has it."""
    spec = _laid_over(method.spec, {"optimizer": {"name": "muon", "momentum": 0.95}})
    return replace(method, name=f"{method.name}-muon", spec=spec)


HALF_RATE: Final = {"optimizer": {"learning_rate": 1e-3}}
"""Half of the tasks' rate: what trials found for gradients that come late."""
SPARSE: Final = _averaging("topk(k=64, values=2bit)", download_codec="gtopk", residual_decay=0.95)
DEMO: Final = {
    "training": {"strategy": "demo"},
    "optimizer": {"name": "sgd", "momentum": 0.0, "learning_rate": 1e-3, "max_grad_norm": "off"},
    **_averaging("topk(k=32)", download_codec="union", sketch="dct64", residual_decay=0.999),
}
REFERENCE: Final = "float16"
QUICK: Final = (REFERENCE, "int8", "topk", "local-20")
"""What is compared in a few minutes."""
OURS = _local("local-20-float32", 20, 0.6, 0.5, "float32")
DILOCO = replace(OURS, name="diloco", is_plain=True)
"""The same without minga."""

METHODS: Final = {
    method.name: method
    for method in (
        Method(REFERENCE, _averaging("float16")),
        Method("float32", _averaging("float32")),
        Method("int8", _averaging("int8")),
        Method("int4", _averaging("int4")),
        Method("adaptive", _averaging("adaptive")),
        Method("delayed", {**_strategy("delayed"), **HALF_RATE}),
        Method("delayed-int8", {**_strategy("delayed", "int8"), **HALF_RATE}),
        Method(
            "topk",
            {**_averaging("topk(k=41)", download_codec="gtopk"), **HALF_RATE},
            variant=_averaging("topk(k=82)"),
        ),
        Method("powersgd", _averaging("float16", sketch="powersgd(rank=4, start={tenth})")),
        Method("demo", DEMO),
        Method("leader", _strategy("leader"), 64, {"strategy": {"leader": {"pull": 0.2}}}),
        Method("elastic", _strategy("elastic"), 20, {"strategy": {"elastic": {"beta": 0.9}}}),
        _local("local-20", 20, 0.6, 0.5),
        _local("local-100", 100, 0.8),
        _local("local-100-int4", 100, 0.8, codec="int4"),
        _local("local-30-int4", 30, 0.7, 0.5, "int4"),
        _with_muon(_local("local-30-int4", 30, 0.7, 0.5, "int4")),
        _local("local-30-int4-overlap", 30, 0.7, 0.5, "int4", overlap=True),
        _local("streaming-100-int4", 100, 0.8, codec="int4", fragments=2, overlap=True),
        Method(
            "sparseloco-30",
            {**_strategy("local", outer_learning_rate=1.0, outer_momentum=0.0), **SPARSE},
            30,
            {"strategy": {"local": {"outer_learning_rate": 4.0}}},
        ),
        # One change at a time, which shows what a gap is made of: of `local-20` or of `local-30-int4`.
        _local("local-20-m9", 20, 0.6, 0.9),
        _local("local-20-batch", 20, 0.6, 0.5, weight="batch"),
        _local("local-10", 10, 0.6, 0.5),
        _local("local-30", 30, 0.7, 0.5),
        _local("local-30-int4-mean", 30, 1.0, 0.0, "int4"),
        _local("local-30-int4-half", 30, 0.35, 0.5, "int4"),
        OURS,
    )
}
