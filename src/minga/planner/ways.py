"""The ways to train that a planner compares: strategies with their settings, codecs, and how often peers average.

A round of local steps has several of the run's target batches, H of them: each peer takes H inner steps, and those of
all peers together have the samples of H batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

import msgspec

from minga.averaging.codecs.registry import ADAPTIVE, CODECS
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.decoding import decode_json
from minga.core.spec.choices import parse_choice

# ---- How much higher the loss of a way to train is after equally many samples: a table of data, and what is between.
#
# The table is `planner/strategy_gaps.json`. Its rows are measured by the benchmark of strategies, or else ranges from
# the literature, and say which. A way without a row of its own gets the sum of what its strategy and its codec have
# alone. Between two numbers of local steps the logarithm of the number counts; beyond them the nearest row does.
#
# A gap of x % costs exp(x / (100 a)) times as many samples to the same loss, where the loss falls as samples^-a.


Basis = Literal["reference", "measured", "literature"]
REFERENCE: Final = ("synchronous", "float16")
_ORDER: Final[tuple[Basis, ...]] = ("reference", "measured", "literature")


@dataclass(frozen=True)
class Gap:
    """A range in percent of the loss; `basis` is that of the least certain part."""

    least: float
    most: float
    basis: Basis

    @property
    def percent(self) -> float:
        """The middle."""
        return (self.least + self.most) / 2.0

    @property
    def extra_samples(self) -> float:
        """How many times the samples of the reference come to the same loss."""
        return math.exp(self.percent / (100.0 * _table().exponent))

    def __add__(self, other: Gap) -> Gap:
        basis = max(self.basis, other.basis, key=_ORDER.index)
        return Gap(self.least + other.least, self.most + other.most, basis)


class _GapRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to train: `batches` of the reference are a round of it."""

    strategy: str
    codec: str
    percent: tuple[float, float]
    basis: Basis
    download_codec: str | None = None
    batches: int = 1
    overlap: bool = False
    fragments: int = 1

    @property
    def gap(self) -> Gap:
        return Gap(*self.percent, self.basis)


class _GapTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    exponent: Annotated[float, msgspec.Meta(gt=0.0)]
    rows: tuple[_GapRow, ...]


def gap_of(
    strategy: str,
    codec: str,
    download_codec: str | None = None,
    *,
    batches: int = 1,
    overlap: bool = False,
    fragments: int = 1,
) -> Gap | None:
    """The gap of such a way; None if nothing is known of its strategy or its codec."""
    wanted = (strategy, codec, download_codec, batches, overlap, fragments)
    rows = _table().rows
    for row in rows:
        if (row.strategy, row.codec, row.download_codec, row.batches, row.overlap, row.fragments) == wanted:
            return row.gap
    alone = _of_codec(codec, download_codec)
    if strategy == REFERENCE[0]:
        return alone
    mine = [row for row in rows if (row.strategy, row.codec) == (strategy, REFERENCE[1])]
    alike = [row for row in mine if (row.overlap, row.fragments) == (overlap, fragments)]
    of_strategy = _between(alike, batches) or _between([row for row in mine if row.fragments == 1], batches)
    return None if of_strategy is None or alone is None else of_strategy + alone


def _of_codec(codec: str, download_codec: str | None) -> Gap | None:
    found = [row for row in _table().rows if (row.strategy, row.codec) == (REFERENCE[0], codec)]
    return next((row.gap for row in found if row.download_codec == download_codec), None)


def _between(rows: Sequence[_GapRow], batches: int) -> Gap | None:
    """By the logarithm of the number of batches."""
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: row.batches)
    batches = min(max(batches, ordered[0].batches), ordered[-1].batches)
    below = [row for row in ordered if row.batches <= batches][-1]
    above = next(row for row in ordered if row.batches >= batches)
    if below.batches == above.batches:
        return below.gap
    share = math.log(batches / below.batches) / math.log(above.batches / below.batches)
    least, most = (one + share * (other - one) for one, other in zip(below.percent, above.percent, strict=True))
    return Gap(least, most, max(below.basis, above.basis, key=_ORDER.index))


@lru_cache(maxsize=1)
def _table() -> _GapTable:
    data = files("minga.planner").joinpath("strategy_gaps.json").read_bytes()
    return decode_json(data, _GapTable)


# ---- The ways.


SYNCHRONOUS: Final = StrategyChoice("synchronous")
DELAYED: Final = StrategyChoice("delayed")
DENSE: Final = (ADAPTIVE, "float16", "int8", "float32")
"""Codecs that send all of a vector; bfloat16 takes as many bytes as float16."""
FEW_INNER_STEPS: Final = 30
"""With no more of them in a round much outer momentum does harm."""


@dataclass(frozen=True)
class TrainingWay:
    """A way to train; `batches` target batches are a round of it."""

    strategy: StrategyChoice
    codec: str
    download_codec: str | None = None
    batches: int = 1

    @property
    def name(self) -> str:
        """In a few words, for tables."""
        settings = self.strategy.table
        words = [self.strategy.name]
        words += [f"H={self.batches}"] if self.batches > 1 else []
        words += ["overlapped"] if settings.get("overlap") and not settings.get("fragments") else []
        words += [f"{settings['fragments']} fragments"] if settings.get("fragments") else []
        return " ".join(words)

    @property
    def is_installed(self) -> bool:
        """Whether this machine has what it names."""
        has_codecs = all(name in CODECS.names() for name in self._codecs)
        return has_codecs and self.strategy.name in STRATEGIES.names()

    @property
    def gap(self) -> Gap | None:
        """How far its loss is behind after equally many samples; None if nobody knows."""
        settings = self.strategy.table
        return gap_of(
            self.strategy.name,
            self.codec,
            self.download_codec,
            batches=self.batches,
            overlap=bool(settings.get("overlap", False)),
            fragments=int(settings.get("fragments", 1)),
        )

    @property
    def _codecs(self) -> list[str]:
        chosen = [self.codec, *([] if self.download_codec is None else [self.download_codec])]
        return [parse_choice(choice).name for choice in chosen if choice != ADAPTIVE]


def local_way(
    batches: int, codec: str, *, local_batch: int = 0, overlap: bool = False, fragments: int = 1
) -> TrainingWay:
    """Local steps of so many batches a round, with the outer rates that fit to that number.

    `local_batch` is that of an inner step; 0 is a micro-batch.
    """
    often = batches <= FEW_INNER_STEPS
    table: dict[str, Any] = {"outer_learning_rate": 0.7 if often else 0.8, "outer_momentum": 0.5 if often else 0.9}
    table |= {"overlap": True} if overlap else {}
    table |= {"fragments": fragments} if fragments > 1 else {}
    table |= {"local_batch": local_batch} if local_batch else {}
    return TrainingWay(StrategyChoice("local", table), codec, batches=batches)


OWN: Final = (
    TrainingWay(SYNCHRONOUS, ADAPTIVE),
    TrainingWay(SYNCHRONOUS, "float16"),
    TrainingWay(SYNCHRONOUS, "int8"),
    TrainingWay(SYNCHRONOUS, "float32"),
    TrainingWay(DELAYED, ADAPTIVE),
    TrainingWay(DELAYED, "float16"),
    TrainingWay(DELAYED, "int8"),
    local_way(20, "float16"),
    local_way(20, "int4"),
    local_way(100, "int4"),
    local_way(100, "int4", overlap=True),
    local_way(100, "int4", overlap=True, fragments=2),
    TrainingWay(SYNCHRONOUS, "topk(k=41)", "gtopk"),
    TrainingWay(StrategyChoice("leader"), "float16", batches=64),
)
"""Those of minga's own that are compared, the usual one first."""


def compared_ways(strategy: str | None = None, codec: str | None = None) -> list[TrainingWay]:
    """The ways with this strategy, and with this codec: minga's own, then those that other packages bring."""
    ways = [way for way in (*OWN, *_of_packages()) if way.is_installed and strategy in (None, way.strategy.name)]
    ways = ways or [TrainingWay(StrategyChoice(str(strategy)), each) for each in DENSE]
    if codec is None:
        return ways
    kinds = {(way.strategy.name, str(way.strategy.table), way.batches): way for way in ways}
    return [replace(way, codec=codec, download_codec=None) for way in kinds.values()]


def _of_packages() -> list[TrainingWay]:
    strategies = [name for name in STRATEGIES.names() if STRATEGIES.origin(name) is not None]
    codecs = [name for name in CODECS.names() if CODECS.origin(name) is not None]
    return [TrainingWay(StrategyChoice(name), ADAPTIVE) for name in strategies] + [
        TrainingWay(SYNCHRONOUS, name) for name in codecs
    ]
