"""The plan of a round: who reduces how much, by which way.

The flat division (`flat.py`) is always there; where paths between peers are slower than their ends, divisions of
two levels (`two_level.py`) are tried, and one is taken if it is predicted to be faster by `TWO_LEVEL_GAIN`: it costs
one more hop, and a site's mean is encoded once more. Groups above `LARGE` always go in two levels.

Parts below `min_part_bytes` are not worth their messages: their shares go to the larger ones. A vector too small for
any part of that size has as few parts as its size asks for, but not fewer than `FEWEST_PARTS`, each of another root.
While a round of these is predicted to take `FEW_S` longer than one of all parts, it gets twice as many. So a step of a
tiny model takes messages in proportion to its members, not to their pairs. Three, and not one, because roots are those
who see the samples of all: receipts ask more than half of them, and nobody confirms alone what is its own. Nor would
one that is far slower than it should be stand out from anybody. Of a larger vector, a sender that would be the only
root gives a small part to another peer, for the same reason. Nor should the roots change with every measurement: who
witnesses a step has to have seen it all.

The same rates give the same division, whatever the order of the peers is (ties aside): they are sorted first. Of small
vectors the order of the peers decides who the roots are among those of like rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from minga.averaging.apportionment import NoAggregatorError
from minga.averaging.solver.division import CleanRates, Division, FloatArray, PartShare, SwarmRates, renumbered, usable
from minga.averaging.solver.flat import LARGEST_PROGRAMME, flat_shares, possible_roots, predict_usable
from minga.averaging.solver.loads import AggregationTree, Indices
from minga.averaging.solver.two_level import LARGE, Partition, large_group_ways, partitions, ways_again

TWO_LEVEL_GAIN: Final = 0.1
"""By which fraction of the flat time two levels have to be faster."""

MIN_PART_BYTES: Final = 16 << 10
KEPT_LOSS: Final = 0.05
"""By which fraction a round of a large group may take longer by the ways of the round before, which are connected."""

LEAST_SHARE: Final = 1e-3
"""A part smaller than these is not worth its streams; its share goes to the others."""

FEWEST_PARTS: Final = 3
FEW_S: Final = 0.1
"""Seconds that a round of a small vector may take longer for fewer messages: about a round trip over an ocean."""

MOST_ASKED: Final = 8
WITNESS_LOSS: Final = 0.01
"""By which fraction a round may take longer for a second root."""

ALIKE: Final = 4.0
"""Of few parts, those whose shares differ by less than this factor are alike: peers in their order have them."""

DIGITS: Final = 13


def divide(
    rates: SwarmRates, vector_bytes: float, former: Division | None = None, *, min_part_bytes: float = MIN_PART_BYTES
) -> Division:
    """The division of a vector of `vector_bytes` (as encoded) with the shortest round by `rates`.

    A large group keeps the sites, relays and roots of a `former` division of the same peers, with other shares, where
    such a round takes hardly longer: else most members would have to connect to others.

    Whatever the rates are, there is an answer (see `usable`); parts are sorted by root and relays. A group of one
    keeps the whole vector. Raises `NoAggregatorError` if all of several peers are clients, and `ValueError` for an
    empty group or a vector of negative size.
    """
    if not rates.peers:
        raise ValueError("a group has at least one peer")
    if not (vector_bytes >= 0.0 and min_part_bytes >= 0.0):
        raise ValueError(f"vector_bytes {vector_bytes} and min_part_bytes {min_part_bytes} must not be negative")
    if len(rates.peers) == 1:
        return Division((PartShare(1.0, 0),), predicted_s=0.0)
    if not any(peer.aggregates for peer in rates.peers):
        raise NoAggregatorError("nobody in the group can be reached by the others: at least one peer must be no client")
    given = usable(rates)
    order = _canonical_order(given)
    least = max(LEAST_SHARE, min_part_bytes / vector_bytes if vector_bytes else 1.0)
    if former is not None:
        former = renumbered(former, np.argsort(order).tolist())
    best = _best(_Question(_reordered(given, order), order, vector_bytes, least, former))
    named = renumbered(best, order.tolist())
    return named if given.known else replace(named, predicted_s=None, binding=None)


@dataclass(frozen=True)
class _Question:
    """What to divide by `rates`, of peers whose numbers in the group are `names`; `least` is the smallest share that
    is worth its messages.
    """

    rates: CleanRates
    names: Indices
    vector_bytes: float
    least: float
    former: Division | None = None

    @property
    def few(self) -> int:
        """How many parts a small vector has at least: as many as its size asks for."""
        return max(FEWEST_PARTS, int(1.0 / self.least))

    @property
    def slack_s(self) -> float:
        """How much longer a round of few parts may take; seconds by rates that nobody knows say nothing."""
        return FEW_S if self.rates.known else math.inf

    def timed(self, parts: tuple[PartShare, ...], sites: Partition = ()) -> Division:
        """A division into `parts`, with the time that it is predicted to take."""
        division = Division(parts, sites)
        foreseen = predict_usable(division, self.rates, self.vector_bytes)
        return replace(division, predicted_s=foreseen.seconds, binding=foreseen.binding)


def _best(asked: _Question) -> Division:
    rates = asked.rates
    if rates.count > LARGE and (large := _large(asked)) is not None:
        return large
    shares = flat_shares(rates)
    best = _divided(asked, [AggregationTree(root) for root in range(rates.count)], shares)
    slow = rates.limited & (rates.limits > 0.0)
    if rates.count > LARGEST_PROGRAMME or not (slow.any() or best.predicted_s == math.inf):
        return best
    saved_s = 0.0 if shares.max() >= asked.least else FEW_S
    allowed_s = (best.predicted_s or 0.0) * (1.0 - TWO_LEVEL_GAIN) - saved_s
    for sites in partitions(rates):
        tried = _two_level(asked, sites)
        if tried is not None and tried.predicted_s is not None and tried.predicted_s <= allowed_s:
            best, allowed_s = tried, tried.predicted_s * (1.0 - 1e-6)
    return best


def _large(asked: _Question) -> Division | None:
    """The division of a large group, with as few relays as will do, or by the former ways."""
    best: Division | None = None
    for sites, ways, shares in large_group_ways(asked.rates, asked.few):
        tried = asked.timed(_parts(ways, shares), sites)
        before_s = math.inf if best is None else best.predicted_s or 0.0
        saved_s = asked.slack_s if len(ways) > asked.few else 0.0
        if best is None or (tried.predicted_s or 0.0) < min(before_s * (1.0 - TWO_LEVEL_GAIN), before_s - saved_s):
            best = tried
    former = asked.former
    # A hostile leader may have signed one with very many parts, which would cost every later leader seconds.
    if best is None or former is None or len(former.parts) > len(best.parts):
        return best
    if (again := ways_again(asked.rates, former)) is not None:
        kept = asked.timed(_parts(*again), former.sites)
        if (kept.predicted_s or 0.0) <= (best.predicted_s or 0.0) * (1.0 + KEPT_LOSS):
            return kept
    return best


def _two_level(asked: _Question, sites: Partition) -> Division | None:
    from minga.averaging.solver.two_level import two_level_shares

    found = two_level_shares(asked.rates, sites)
    return None if found is None else _divided(asked, *found, sites)


def _divided(asked: _Question, ways: Sequence[AggregationTree], shares: FloatArray, sites: Partition = ()) -> Division:
    """The parts that are large enough; if none is, few of them."""
    if shares.max() >= asked.least:
        return _witnessed(asked, ways, np.where(shares >= asked.least, shares, 0.0), sites)
    best = asked.timed(_parts(ways, shares), sites)
    allowed_s = (best.predicted_s or 0.0) + asked.slack_s
    count, ranks = asked.few, _ranks(ways, shares, asked.names)
    while count < len(best.parts):
        fewer = asked.timed(_parts(ways, np.where(ranks < count, shares, 0.0)), sites)
        if (fewer.predicted_s or 0.0) <= allowed_s:
            return fewer
        count *= 2
    return best


def _witnessed(asked: _Question, ways: Sequence[AggregationTree], shares: FloatArray, sites: Partition) -> Division:
    """The division by these shares; a sender that would be the only root gives the smallest part to another peer, where
    that takes hardly longer. Those that send nothing are asked first: they have no samples of their own to confirm.
    """
    alone = asked.timed(_parts(ways, shares), sites)
    roots = {ways[number].root for number in np.flatnonzero(shares).tolist()}
    if len(roots) > 1 or not any(asked.rates.sends[root] for root in roots):
        return alone
    able = possible_roots(asked.rates)
    others = [number for number, way in enumerate(ways) if able[way.root] and way.root not in roots]
    others.sort(key=lambda number: (asked.rates.sends[ways[number].root], asked.names[ways[number].root], number))
    for number in others[:MOST_ASKED]:
        shared = shares * (1.0 - asked.least)
        shared[number] = asked.least
        two = asked.timed(_parts(ways, shared), sites)
        if (two.predicted_s or 0.0) <= (alone.predicted_s or 0.0) * (1.0 + WITNESS_LOSS):
            return two
    return alone


def _ranks(ways: Sequence[AggregationTree], shares: FloatArray, names: Indices) -> Indices:
    """The rank of each way: by whether its root has another one before it, then by its share, then by the root's name.

    Shares differ by powers of `ALIKE` or not at all, and so the roots stay the same ones while rates move a little.
    """
    levels = np.floor(np.log(np.maximum(shares.max() / np.maximum(shares, 1e-300), 1.0)) / math.log(ALIKE))
    before = Counter[int]()
    keys: list[tuple[int, float, int, int]] = []
    for number in np.argsort(-shares, kind="stable").tolist():
        root = ways[number].root
        keys.append((before[root], levels[number], int(names[root]), number))
        before[root] += 1
    ranks = np.empty(len(ways), dtype=np.intp)
    ranks[[number for *_, number in sorted(keys)]] = np.arange(len(ways))
    return ranks


def _parts(ways: Sequence[AggregationTree], shares: FloatArray) -> tuple[PartShare, ...]:
    """The parts whose shares are not 0, made to sum to 1."""
    kept = np.round(shares / shares.sum(), DIGITS)
    return tuple(PartShare(float(share), *way) for way, share in zip(ways, kept, strict=True) if share > 0.0)


def _canonical_order(rates: CleanRates) -> Indices:
    """An order of the peers (the fastest first) that does not depend on how they are numbered, ties aside."""
    keys = (
        rates.limits.sum(axis=0), rates.limits.sum(axis=1), rates.samples_per_second, rates.receives, rates.sends,
        rates.aggregates, -rates.download, -rates.upload, -np.minimum(rates.upload, rates.download),
    )  # fmt: skip
    return np.lexsort(keys)


def _reordered(rates: CleanRates, order: Indices) -> CleanRates:
    return replace(
        rates,
        upload=rates.upload[order],
        download=rates.download[order],
        samples_per_second=rates.samples_per_second[order],
        sends=rates.sends[order],
        receives=rates.receives[order],
        aggregates=rates.aggregates[order],
        limits=rates.limits[np.ix_(order, order)],
    )
