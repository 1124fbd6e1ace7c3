"""What the planner is told and what it answers, in numbers only: rates of peers, and who reduces which share.

Peers are numbered by their place in the group (the leader is 0). The vector is cut into *parts*; each has a *root*,
the member that makes the result. In a flat division every member sends its part of the vector straight to the root.
In a division of two levels some members form *sites*, whose inner links are fast: the members of a site send to the
site's *relay* of that part, which sends one weighted mean on to the root, and passes the result on to its site. So a
part crosses a slow link between two sites once in each direction instead of once for each member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class PeerRates:
    """What is known of one peer: rates in bytes per second, None where unknown.

    `sends`: it has samples to contribute; `receives`: it needs the result; `aggregates`: all others can reach it.
    `samples_per_second` is its speed while it computes, 0 for one that never does.
    """

    upload: float | None
    download: float | None
    samples_per_second: float = 0.0
    sends: bool = True
    receives: bool = True
    aggregates: bool = True


@dataclass(frozen=True)
class SwarmRates:
    """The peers of a group, and the limits (bytes per second) of those paths that are slower than both their ends.

    `pairs[i, j]` limits what i sends to j; 0 means that there is no way at all.
    """

    peers: tuple[PeerRates, ...]
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class PartShare:
    """One part: its fraction of the vector (> 0), its root, and for each site of the division the relay there.

    In the root's own site, if it is in one, the relay is the root itself.
    """

    share: float
    root: int
    relays: tuple[int, ...] = ()


@dataclass(frozen=True)
class Binding:
    """The link that a round takes longest on: the peer's upload or download, or (with `other`) the path to it."""

    kind: str  # "upload", "download" or "path"
    peer: int
    other: int | None = None


@dataclass(frozen=True)
class Division:
    """Who reduces what. Shares sum to 1 up to rounding; sites are disjoint and have two members or more.

    `predicted_s` is the time of a round by the rates that the division was made from: None if they are unknown,
    infinite if it needs a path that does not exist.
    """

    parts: tuple[PartShare, ...]
    sites: tuple[tuple[int, ...], ...] = ()
    predicted_s: float | None = None
    binding: Binding | None = None


def renumbered(division: Division, names: Sequence[int]) -> Division:
    """The same division with the peer of number i called `names[i]`, each number once."""
    order = sorted(range(len(division.sites)), key=lambda place: min(names[peer] for peer in division.sites[place]))
    binding = division.binding
    if binding is not None:
        other = None if binding.other is None else names[binding.other]
        binding = Binding(binding.kind, names[binding.peer], other)
    parts = (
        PartShare(part.share, names[part.root], tuple(names[part.relays[place]] for place in order))
        for part in division.parts
    )
    return Division(
        parts=tuple(sorted(parts, key=lambda part: (part.root, part.relays))),
        sites=tuple(tuple(sorted(names[peer] for peer in division.sites[place])) for place in order),
        predicted_s=division.predicted_s,
        binding=binding,
    )


# ---- Rates that can be computed with, made from whatever measurements, declarations and lies gave.
#
# Nothing raises here: the planner of a live round has to answer. What was not taken as given is told in remarks.


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
