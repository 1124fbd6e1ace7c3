"""The methods that `benchmarks.strategies` compares, by their names, and what the formulas say about their bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, run_spec
from minga.averaging.codecs.registry import ADAPTIVE
from minga.averaging.strategy_choice import StrategyChoice, StrategyFacts, facts_of
from minga.planner.ways import TrainingWay, local_way

Tables = Mapping[str, Any]
BITS: Final = {
    ("float32", None): (32.0, 32.0),
    ("float16", None): (16.0, 16.0),
    ("int8", None): (8.0 + 16.0 / 256, 8.0 + 16.0 / 256),
    ("int4", None): (4.0 + 16.0 / 64, 4.0 + 16.0 / 64),
    ("sign(magnitudes=2)", None): (2.0 + 32.0 / 256, 4.0 + 16.0 / 64),
    ("topk(k=41)", "gtopk"): (0.246, 1.375),
}
"""What formulas give for an element of a contribution and of a mean, by their codecs; else it depends on the data."""
SMALLER_ADAPTIVE: Final = f"{ADAPTIVE}(from_elements=1024)"
"""Sends as int8 what `adaptive` does of the models that the tasks stand for, all matrices."""


@dataclass(frozen=True, eq=False)
class Method:
    """A way to train: tables of a run spec, and global batches a round (H inner steps, where peers take these).

    Its learning rate is `rate` times the task's. It begins with synchronous steps for the share `warm` of the samples.
    With `is_plain` it is a loop of plain torch. A method is `usual` with the settings that plans mean, whatever its
    optimizer and learning rate.
    """

    name: str
    spec: Tables = field(default_factory=dict)
    batches: int = 1
    is_plain: bool = False
    rate: float = 1.0
    warm: float = 0.0
    usual: bool = True

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
    def optimizer(self) -> str:
        """Its own, where it does not take the task's; else ""."""
        return str(self.spec.get("optimizer", {}).get("name", ""))

    @property
    def choice(self) -> dict[str, Any]:
        """What plans know it by."""
        averaging, strategy = self.spec["averaging"], self.spec.get("training", {}).get("strategy", "synchronous")
        choice = StrategyChoice(strategy, self.spec.get("strategy", {}).get(strategy, {}))
        codec = ADAPTIVE if averaging["codec"] == SMALLER_ADAPTIVE else averaging["codec"]
        way = TrainingWay(choice, codec, averaging.get("download_codec"), self.batches)
        return known_as(way, self.optimizer)

    def tables(self, warm_samples: int) -> Tables:
        """What it says in a run spec, with so many samples before its strategy begins."""
        if not warm_samples:
            return self.spec
        warm = {"synchronous_for": warm_samples, "synchronous_batch": GLOBAL_BATCH}
        return _laid_over(self.spec, {"strategy": {self.choice["strategy"]: warm}})


def known_as(way: TrainingWay, optimizer: str = "") -> dict[str, Any]:
    """What plans know a way by; what is as usual is left out."""
    found: dict[str, Any] = {"strategy": way.strategy.name, "codec": way.codec}
    found |= {"download_codec": way.download_codec} if way.download_codec else {}
    found |= {"batches": way.batches} if way.batches > 1 else {}
    found |= {"optimizer": optimizer} if optimizer else {}
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


_LOCAL: Final = re.compile(
    r"local-(?P<batches>\d+)(-(?P<codec>float32|int8|int4|sign2?))?(-r(?P<rate>[\d.]+))?(-m(?P<momentum>[\d.]+))?"
    r"(-(?P<weight>batch))?(-(?P<overlap>overlap))?(-f(?P<fragments>\d+))?(-(?P<muon>muon))?(-x(?P<factor>[\d.]+))?"
    r"(-warm(?P<warm>\d+))?"
)
_OTHER: Final = re.compile(
    r"(?P<name>sparseloco-(?P<batches>\d+)(-r(?P<rate>[\d.]+))?|.+?)(?P<muon>-muon)?(-x(?P<factor>[\d.]+))?"
)
NAMED: Final = {"sign2": "sign(magnitudes=2)"}
"""Codecs whose names in methods are shorter."""
MUON: Final = {"optimizer": {"name": "muon", "momentum": 0.95}}
HALF: Final = 0.5
"""Of the tasks' rate: what trials found for gradients that come late."""
SPARSE: Final = _averaging("topk(k=64, values=2bit)", download_codec="gtopk", residual_decay=0.95)
DEMO: Final = {
    "training": {"strategy": "demo"},
    "optimizer": {"name": "sgd", "momentum": 0.0, "learning_rate": 1e-3, "max_grad_norm": "off"},
    **_averaging("topk(k=32)", download_codec="union", sketch="dct64", residual_decay=0.999),
}


def _sparseloco(batches: int, rate: float = 1.0) -> Method:
    spec = {**_strategy("local", outer_learning_rate=rate, outer_momentum=0.0), **SPARSE}
    return Method(f"sparseloco-{batches}", spec, batches)


REFERENCE: Final = "float16"
QUICK: Final = (REFERENCE, "int8", "topk", "local-20")
"""What is compared in a few minutes."""

OTHERS: Final = {
    method.name: method
    for method in (
        Method(REFERENCE, _averaging("float16")),
        Method("float32", _averaging("float32")),
        Method("int8", _averaging("int8")),
        Method("int4", _averaging("int4")),
        Method("sign2", _averaging("sign(magnitudes=2)")),
        Method("adaptive", _averaging(SMALLER_ADAPTIVE)),
        Method("float16-muon", {**_averaging("float16"), **MUON}),
        Method("int4-muon", {**_averaging("int4"), **MUON}),
        Method("delayed", _strategy("delayed"), rate=HALF),
        Method("delayed-int8", _strategy("delayed", "int8"), rate=HALF),
        Method(
            "topk",
            _averaging("topk(k=41)", download_codec="gtopk"),
            rate=HALF,
        ),
        Method("powersgd", _averaging("float16", sketch="powersgd(rank=4, start={tenth})"), usual=False),
        Method("demo", DEMO),
        Method("leader", _strategy("leader"), 64),
        Method("elastic", _strategy("elastic"), 20),
        _sparseloco(30),
    )
}
LOCAL: Final = ("local-20", "local-100", "local-30-int4", "local-100-int4", "local-30-int4-overlap")
"""Those with local steps that are compared where nobody names methods; see `method_of` for others."""


def method_of(name: str) -> Method:
    """The method called `name`: one of `OTHERS`, or local steps, whose name says what they are.

    `local-30-int4-r1-m0.5-muon-warm5` has 30 global batches a round, the codec int4 (else float16), an outer rate of 1
    and a momentum of 0.5 (else those that plans take for so many steps), Muon for the inner steps, and begins with 5 %
    of the samples in synchronous steps. Before `muon` stand `batch`, `overlap` and `f2`, for the weights, rounds beside
    computing, and 2 fragments; after it `x0.5`, for half the task's learning rate. After a name of `OTHERS`, and
    `sparseloco-10-r2`, may stand `muon` and `x0.5`, too. Raises `KeyError` for another name.
    """
    if (said := _LOCAL.fullmatch(name)) is None:
        return _other(name)
    batches, rate, momentum = int(said["batches"]), said["rate"], said["momentum"]
    way = local_way(
        batches,
        NAMED.get(said["codec"], said["codec"]) or "float16",
        overlap=bool(said["overlap"]),
        fragments=int(said["fragments"] or 1),
    )
    settings = dict(way.strategy.table)
    settings |= {"outer_learning_rate": float(rate)} if rate else {}
    settings |= {"outer_momentum": float(momentum)} if momentum else {}
    settings |= {"weight": "batch"} if said["weight"] else {}
    spec = {**_strategy("local", way.codec, **settings), **(MUON if said["muon"] else {})}
    usual = not any(said[word] for word in ("rate", "momentum", "weight", "warm"))
    return Method(name, spec, batches, rate=float(said["factor"] or 1), warm=int(said["warm"] or 0) / 100, usual=usual)


def _other(name: str) -> Method:
    said = _OTHER.fullmatch(name)
    if name in OTHERS or said is None:
        return OTHERS[name]
    found = _sparseloco(int(said["batches"]), float(said["rate"] or 1)) if said["batches"] else OTHERS[said["name"]]
    spec = {**found.spec, **(MUON if said["muon"] else {})}
    return replace(found, name=name, spec=spec, rate=float(said["factor"] or 1) * found.rate)


OURS = method_of("local-20-float32-r0.6-m0.5")
DILOCO = replace(OURS, name="diloco", is_plain=True)
"""The same without minga."""
