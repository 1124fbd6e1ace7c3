"""How much higher the loss of a way to train is after equally many samples: a table of data, and what is between.

The table is `forecast/strategy_gaps.json`. Its rows are measured by the benchmark of strategies, or else ranges from
the literature, and say which. A way without a row of its own gets the sum of what its strategy and its codec have
alone.
Between two numbers of local steps the logarithm of the number counts; beyond them the nearest row does.

A gap of x % costs exp(x / (100 a)) times as many samples to the same loss, where the loss falls as samples^-a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Final, Literal

import msgspec

from minga.core.decoding import decode_json

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
    data = files("minga.simulation.forecast").joinpath("strategy_gaps.json").read_bytes()
    return decode_json(data, _GapTable)
