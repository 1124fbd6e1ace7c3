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

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.layout import usual_download
from minga.averaging.codecs.registry import ADAPTIVE, CODECS
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.decoding import decode_json
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import parse_choice

# ---- How much higher the loss of a way to train is after equally many samples: a table of data, and what is between.
#
# The table is `planner/strategy_gaps.json`. Its rows are measured by the benchmark of strategies, in one of its tasks,
# or else ranges from the literature, and say which. Where a strategy or a codec was measured, nothing of the literature
# counts. The gap of a way goes from the least to the most of the tasks. In a task, a way without a row of its own gets
# the sum of what its strategy and its codec have alone; a codec that never arrived with some settings is taken to do as
# badly with others that nobody measured and that send not much more. Between two numbers of local steps the logarithm
# of the number counts; beyond them the nearest row does. Rows of an optimizer are relative to synchronous steps with
# that optimizer, and count only for it: there they take the place of all rows of their strategy, and of synchronous
# steps of those with their codec. Rows that name no optimizer were measured with AdamW.
#
# A gap of x % costs exp(x / (100 a)) times as many samples to the same loss, where the loss falls as samples^-a. The
# exponents a are what ways needed in the benchmark to the loss that the reference has after 80 % of its samples: in the
# task `gpt` 0.24 to 0.28 with AdamW, and 0.42 to 0.44 with Muon, of which the gap is that of the end of the schedule.


Basis = Literal["reference", "measured", "literature"]
REFERENCE: Final = ("synchronous", "float16")
_ORDER: Final[tuple[Basis, ...]] = ("reference", "measured", "literature")
NOT_MUCH_MORE: Final = 3.0
"""Times the bytes: 6 % of the elements in two bits came to the loss as little as 1 %."""


@dataclass(frozen=True)
class Gap:
    """A range in percent of the loss; `basis` is that of the least certain part.

    `runs` are those that were measured, of the part with the fewest; 0 of none. A way that never `arrives` did not come
    to the reference's loss in some task, whatever time it had.
    """

    least: float
    most: float
    basis: Basis
    runs: int = 0
    arrives: bool = True
    optimizer: str = ""
    """That of the rows that it comes from, if they are those of one."""

    @property
    def percent(self) -> float:
        """The middle."""
        return (self.least + self.most) / 2.0

    @property
    def extra_samples(self) -> float:
        """How many times the samples of the reference come to the same loss."""
        exponents = _table().exponents
        return math.exp(self.percent / (100.0 * exponents.get(self.optimizer, exponents[""])))

    def __add__(self, other: Gap) -> Gap:
        basis = max(self.basis, other.basis, key=_ORDER.index)
        runs = min((each.runs for each in (self, other) if each.runs), default=0)
        arrives, optimizer = self.arrives and other.arrives, self.optimizer or other.optimizer
        return Gap(self.least + other.least, self.most + other.most, basis, runs, arrives, optimizer)


class _GapRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to train: `batches` of the reference are a round of it. `task` and `seeds` are those of the benchmark.
    `optimizer` is "" where it was AdamW, or any.
    """

    strategy: str
    codec: str
    percent: tuple[float, float]
    basis: Basis
    download_codec: str | None = None
    batches: int = 1
    overlap: bool = False
    fragments: int = 1
    optimizer: str = ""
    task: str = ""
    seeds: int = 0
    arrives: bool = True

    @property
    def gap(self) -> Gap:
        return Gap(*self.percent, self.basis, self.seeds, self.arrives, self.optimizer)

    @property
    def codecs(self) -> tuple[str, str | None]:
        """With nothing for means that travel as they usually do."""
        return (self.codec, None if self.download_codec == _usual_download(self.codec) else self.download_codec)

    @property
    def way(self) -> tuple[object, ...]:
        return (self.strategy, self.codecs, self.batches, self.overlap, self.fragments)


class _GapTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    exponents: dict[str, Annotated[float, msgspec.Meta(gt=0.0)]]
    """By the name of the optimizer; "" stands for those that have none of their own."""
    rows: tuple[_GapRow, ...]


def gap_of(
    strategy: str,
    codec: str,
    download_codec: str | None = None,
    *,
    batches: int = 1,
    overlap: bool = False,
    fragments: int = 1,
    optimizer: str = "",
) -> Gap | None:
    """The gap of such a way; None if nothing is known of its strategy or its codec."""
    wanted = _GapRow(strategy, codec, (0.0, 0.0), "reference", download_codec, batches, overlap, fragments, optimizer)
    by_task: dict[str, list[_GapRow]] = {}
    rows = _rows_for(optimizer, strategy)
    wanted = _with_known_settings(wanted, rows)
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    others = by_task.pop("", [])
    measured = [gap for rows in by_task.values() if (gap := _in_task(rows, wanted)) is not None]
    if not measured:
        return _in_task(others, wanted)
    least, most = min(gap.least for gap in measured), max(gap.most for gap in measured)
    basis = max((gap.basis for gap in measured), key=_ORDER.index)
    runs, arrives = sum(gap.runs for gap in measured), all(gap.arrives for gap in measured)
    return Gap(least, most, basis, runs, arrives, measured[0].optimizer)


def _rows_for(optimizer: str, strategy: str) -> list[_GapRow]:
    """The rows that count for this strategy with this optimizer."""
    rows = [row for row in _table().rows if row.strategy == strategy and row.optimizer in ("", optimizer)]
    own = [row for row in rows if row.optimizer]
    if own and strategy != REFERENCE[0]:
        return own
    return own + [row for row in rows if not row.optimizer and row.codec not in {each.codec for each in own}]


def _with_known_settings(wanted: _GapRow, rows: Sequence[_GapRow]) -> _GapRow:
    """With the settings of a row of its codec that never arrives, if none has its own and these send not much more."""
    if any(row.codecs == wanted.codecs for row in rows):
        return wanted
    name = wanted.codec.partition("(")[0]
    for row in rows:
        if row.arrives or row.codec.partition("(")[0] != name:
            continue
        if _sent_bytes(wanted.codec) <= NOT_MUCH_MORE * _sent_bytes(row.codec):
            return msgspec.structs.replace(wanted, codec=row.codec, download_codec=row.download_codec)
    return wanted


def _in_task(rows: Sequence[_GapRow], wanted: _GapRow) -> Gap | None:
    """What these rows say, which are those of one task, or of none."""
    for row in rows:
        if row.way == wanted.way:
            return row.gap
    if wanted.strategy == REFERENCE[0] or not rows:
        return None
    kinds = ((wanted.overlap, wanted.fragments), (wanted.overlap, 1), (False, 1))
    alike = next((found for kind in kinds if (found := [r for r in rows if (r.overlap, r.fragments) == kind])), rows)
    if same := [row for row in alike if row.codecs == wanted.codecs]:
        return _between(same, wanted.batches)
    # What it was measured with stands for float16: it is one of the codecs that cost little.
    codecs = [row.codec for row in alike]
    nearest = REFERENCE[1] if REFERENCE[1] in codecs else codecs[0]
    of_strategy = _between([row for row in alike if row.codec == nearest], wanted.batches)
    of_codec = gap_of(REFERENCE[0], wanted.codec, wanted.download_codec, optimizer=wanted.optimizer)
    return None if of_strategy is None or of_codec is None else of_strategy + of_codec


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
    basis = max(below.basis, above.basis, key=_ORDER.index)
    arrives = below.arrives and above.arrives
    return Gap(least, most, basis, min(below.seeds, above.seeds), arrives, below.optimizer)


@lru_cache(maxsize=64)
def _sent_bytes(choice: str) -> float:
    """Of a million elements; infinite of a codec that is not installed."""
    try:
        return codec(choice).max_encoded_bytes(1 << 20)
    except ConfigurationError:
        return math.inf


@lru_cache(maxsize=64)
def _usual_download(codec: str) -> str | None:
    """None also of a codec that is not installed."""
    try:
        return usual_download(codec)
    except ConfigurationError:
        return None


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

    def gap(self, optimizer: str = "") -> Gap | None:
        """How far its loss is behind after equally many samples with this optimizer; None if nobody knows."""
        settings = self.strategy.table
        return gap_of(
            self.strategy.name,
            self.codec,
            self.download_codec,
            batches=self.batches,
            overlap=bool(settings.get("overlap", False)),
            fragments=int(settings.get("fragments", 1)),
            optimizer=optimizer,
        )

    @property
    def _codecs(self) -> list[str]:
        chosen = [self.codec, *([] if self.download_codec is None else [self.download_codec])]
        return [parse_choice(choice).name for choice in chosen if choice != ADAPTIVE]


def local_way(batches: int, codec: str, *, overlap: bool = False, fragments: int = 1) -> TrainingWay:
    """Local steps of so many batches a round, with the outer rates that fit to that number."""
    often = batches <= FEW_INNER_STEPS
    table: dict[str, Any] = {"outer_learning_rate": 0.7 if often else 0.8, "outer_momentum": 0.5 if often else 0.9}
    table |= {"overlap": True} if overlap else {}
    table |= {"fragments": fragments} if fragments > 1 else {}
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
    local_way(14, "sign(magnitudes=2)"),
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
