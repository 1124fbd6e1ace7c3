"""Rates that can be computed with, made from whatever measurements, declarations and lies gave.

Nothing raises here: the planner of a live round has to answer. What was not taken as given is told in remarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.averaging.solver.division import SwarmRates

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SLOWEST_RATE: Final = 1.0
FASTEST_RATE: Final = 1e12
"""Bytes per second: a peer that claims less or more has measured nothing."""

CONTRADICTION: Final = 2.0
"""A path measured this many times faster than one of its ends contradicts it."""


@dataclass(frozen=True)
class Remark:
    """What was wrong with the rates of a peer, or (with `other`) with the limit of its path to that one."""

    peer: int
    text: str
    other: int | None = None


@dataclass(frozen=True)
class CleanRates:
    """The rates of n peers. `upload`, `download` (n, bytes per second) are finite and positive.

    `limits` (n, n) holds the rate of the path from row to column: no more than both ends allow, 0 where there is no
    way. `known` says whether at least one rate was given.
    """

    upload: FloatArray
    download: FloatArray
    samples_per_second: FloatArray
    sends: BoolArray
    receives: BoolArray
    aggregates: BoolArray
    limits: FloatArray
    known: bool
    remarks: tuple[Remark, ...]

    @property
    def count(self) -> int:
        """Number of peers."""
        return len(self.upload)

    @property
    def limited(self) -> BoolArray:
        """Which paths (n, n) are slower than both their ends."""
        slower = self.limits < np.minimum(self.upload[:, None], self.download[None, :])
        return np.asarray(slower & ~np.eye(self.count, dtype=np.bool_))


def usable(rates: SwarmRates) -> CleanRates:
    """Fill in what is unknown and clamp what is absurd.

    An unknown upload or download is taken for the median of the known ones of that kind (of the other kind if none
    is known). A rate that is zero, negative, absurd or no number says nothing and counts as unknown; a path of rate 0
    is none.
    """
    remarks: list[Remark] = []
    upload = [_rate(peer.upload, index, "upload", remarks) for index, peer in enumerate(rates.peers)]
    download = [_rate(peer.download, index, "download", remarks) for index, peer in enumerate(rates.peers)]
    up, down = _filled(upload, download), _filled(download, upload)
    speeds = [_speed(peer.samples_per_second, index, remarks) for index, peer in enumerate(rates.peers)]
    return CleanRates(
        upload=up,
        download=down,
        samples_per_second=np.array(speeds, dtype=np.float64),
        sends=np.array([peer.sends for peer in rates.peers], dtype=np.bool_),
        receives=np.array([peer.receives for peer in rates.peers], dtype=np.bool_),
        aggregates=np.array([peer.aggregates for peer in rates.peers], dtype=np.bool_),
        limits=_limits(rates, up, down, remarks),
        known=any(rate is not None for rate in (*upload, *download)),
        remarks=tuple(remarks),
    )


def _rate(given: float | None, peer: int, kind: str, remarks: list[Remark]) -> float | None:
    if given is None:
        return None
    if SLOWEST_RATE <= given <= FASTEST_RATE:
        return float(given)
    remarks.append(Remark(peer, f"{kind} of {given:g} bytes/s is no rate: taken as unknown"))
    return None


def _speed(given: float, peer: int, remarks: list[Remark]) -> float:
    if 0.0 <= given <= FASTEST_RATE:
        return float(given)
    remarks.append(Remark(peer, f"{given:g} samples/s is no speed: taken as 0"))
    return 0.0


def _filled(own: Sequence[float | None], other: Sequence[float | None]) -> FloatArray:
    known = [rate for rate in own if rate is not None] or [rate for rate in other if rate is not None]
    usual = median(known) if known else 1.0
    return np.array([usual if rate is None else rate for rate in own], dtype=np.float64)


def _limits(rates: SwarmRates, up: FloatArray, down: FloatArray, remarks: list[Remark]) -> FloatArray:
    limits, count = np.minimum(up[:, None], down[None, :]), len(up)
    for (peer, other), given in sorted(rates.pairs.items()):
        if not (0 <= peer < count and 0 <= other < count) or peer == other:
            continue  # of a peer that is not here
        if not given >= 0.0:
            remarks.append(Remark(peer, f"a path of {given:g} bytes/s is no path: taken as unknown", other))
        elif given > CONTRADICTION * limits[peer, other]:
            remarks.append(Remark(peer, "the path was measured faster than its ends: the slower counts", other))
        elif given < limits[peer, other]:
            limits[peer, other] = max(float(given), SLOWEST_RATE) if given else 0.0
    return limits
